"""Which rule finds the best of ten strategies with few noisy measurements? Drawn worlds, no training.

    python benchmarks/selection_rules.py [--worlds 1200] [--strategies 10]

Gains are independent and normal (standard deviation 3 %), every rule knows that and the noise, and recommends the
greatest posterior mean. Printed is the regret in per cent, with its standard error. Rules: every strategy in turn,
halving, the knowledge gradient and top-two Thompson sampling, the last two with one, two or four strategies at once (a
race: the knowledge gradient chooses each as if those before had brought what is expected of them).
"""

import argparse
import math
from statistics import NormalDist

import numpy as np

SPREAD = 0.03
"""Standard deviation of the strategies' gains, in ln(throughput)."""
CASES = ((0.045, 36), (0.01, 36), (0.01, 16))
"""Noise of a measurement, and measurements."""
RULES = ("uniform", "halving", "kg 1", "kg 2", "kg 4", "ttts 1", "ttts 2", "ttts 4")


class World:
    """Strategies with unknown gains, and what measuring them has told."""

    def __init__(self, dice: np.random.Generator, strategies: int, noise: float) -> None:
        self.dice, self.noise = dice, noise
        self.truth = dice.normal(0.0, SPREAD, strategies)
        self.mean, self.variance = np.zeros(strategies), np.full(strategies, SPREAD**2)

    def measure(self, i: int) -> None:
        share = self.variance[i] / (self.variance[i] + self.noise**2)
        self.mean[i] += share * (self.truth[i] + self.dice.normal(0.0, self.noise) - self.mean[i])
        self.variance[i] *= 1.0 - share

    def regret(self) -> float:
        return float(self.truth.max() - self.truth[np.argmax(self.mean)])


def choose_by_gradient(world: World, count: int) -> list[int]:
    variance, chosen = world.variance.copy(), list[int]()
    first, second = np.sort(world.mean)[::-1][:2]
    behind = np.where(world.mean == first, first - second, first - world.mean)
    for _ in range(count):
        moves = variance / np.sqrt(variance + world.noise**2)
        z = behind / moves
        below = np.array([NormalDist().cdf(-v) for v in z])
        value = moves * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) - behind * below
        value[chosen] = -1.0
        chosen.append(int(np.argmax(value)))
        variance[chosen[-1]] = 1.0 / (1.0 / variance[chosen[-1]] + 1.0 / world.noise**2)
    return chosen


def choose_by_thompson(world: World, count: int) -> list[int]:
    def draw() -> int:
        return int(np.argmax(world.mean + np.sqrt(world.variance) * world.dice.normal(size=len(world.mean))))

    chosen: dict[int, None] = {}
    for _ in range(50):
        one = draw()
        if world.dice.random() < 0.5:
            one = next((other for other in (draw() for _ in range(30)) if other != one), one)
        chosen[one] = None
        if len(chosen) == count:
            break
    return list(chosen)


def halve(world: World, measurements: int) -> None:
    alive, rounds = list(range(len(world.mean))), math.ceil(math.log2(len(world.mean)))
    for _ in range(rounds):
        for i in alive:
            for _ in range(max(1, measurements // (rounds * len(alive)))):
                world.measure(i)
        alive = sorted(alive, key=lambda i: -world.mean[i])[: max(1, len(alive) // 2)]
    world.mean[[i for i in range(len(world.mean)) if i not in alive]] = -1.0


def search(rule: str, world: World, measurements: int) -> float:
    name, _, at_once = rule.partition(" ")
    if name == "halving":
        halve(world, measurements)
        return world.regret()
    done = 0
    while done < measurements:
        count = min(int(at_once or 1), measurements - done)
        if name == "uniform":
            chosen = [done % len(world.mean)]
        else:
            chosen = (choose_by_gradient if name == "kg" else choose_by_thompson)(world, count)
        for i in chosen:
            world.measure(i)
        done += len(chosen)
    return world.regret()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=1200)
    parser.add_argument("--strategies", type=int, default=10)
    options = parser.parse_args()
    print("| noise | measurements | " + " | ".join(RULES) + " |")
    print("|---" * (2 + len(RULES)) + "|")
    for noise, measurements in CASES:
        cells = []
        for rule in RULES:
            dice = np.random.default_rng(0)
            found = [
                100.0 * search(rule, World(dice, options.strategies, noise), measurements)
                for _ in range(options.worlds)
            ]
            cells.append(f"{np.mean(found):.3f} ± {np.std(found) / math.sqrt(len(found)):.3f}")
        print(f"| {noise:.1%} | {measurements} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
