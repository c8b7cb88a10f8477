"""Labs of ideas of which nearly all bring nothing: how many false gains does each way to share out the error tell?

    python benchmarks/labs.py [--labs 4000] [--looks 150] [--seed 1] [--out docs/results/labs.md]

Part one draws a lab's races as z values: 40 ideas, of which none, 1 or 5 help, asked by three kinds of agents, and
holds the ways to share the error out against each other. Part two carries whole labs by the statistics that verdicts
use (`look_at`: launches that differ by luck, looks after each), at the levels of `advisor.lab.rules`.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist, fmean

import numpy as np

from advisor.lab.rules import error_of
from advisor.protocol.measured.trials import Contrast
from advisor.tuning.measure.sequential import look_at

IDEAS, FALSE_GAINS = 40, 0.05
_NORMAL = NormalDist()
_CAP = 0.025
_POWER_Z = 4.0
"""z of an idea that helps: twice what a race outside a lab needs."""


def _decaying(power: float, count: int = 400) -> list[float]:
    weights = [place**-power for place in range(1, count + 1)]
    return [weight / sum(weights) for weight in weights]


_GAMMA_16, _GAMMA_LORD = (
    _decaying(1.6),
    [math.log(max(place, 2)) / (place * math.exp(math.sqrt(math.log(place)))) for place in range(1, 401)],
)
_GAMMA_LORD = [weight / sum(_GAMMA_LORD) for weight in _GAMMA_LORD]


@dataclass
class Told:
    """What a lab has told so far."""

    at: list[int] = field(default_factory=list)
    """Places (from 1) of the races that told a gain."""
    candidates: list[int] = field(default_factory=list)
    """Places whose p was at most 0.5 (SAFFRON)."""


def keep_each(_place: int, _told: Told) -> float:
    """Each race at 2.5 %, as outside a lab."""
    return _CAP


def spend(place: int, _told: Told) -> float:
    """Alpha spending: the shares of a lab, and nothing earned by gains."""
    return error_of(place, IDEAS, FALSE_GAINS, 0)


def lond(place: int, told: Told) -> float:
    """LOND with the shares of a lab: the product's."""
    return error_of(place, IDEAS, FALSE_GAINS, len(told.at))


def lond_decaying(place: int, told: Told) -> float:
    """LOND with shares that decay as j^-1.6, which know of no number of ideas."""
    return FALSE_GAINS * _GAMMA_16[place - 1] * (len(told.at) + 1)


def lord(place: int, told: Told) -> float:
    """LORD++ (Ramdas, Yang, Wainwright and Jordan 2017), initial wealth q / 10."""
    first = FALSE_GAINS / 10
    level = _GAMMA_LORD[place - 1] * first
    for number, at in enumerate(told.at):
        earned = FALSE_GAINS - first if number == 0 else FALSE_GAINS
        level += earned * _GAMMA_LORD[place - at - 1]
    return level


def saffron(place: int, told: Told) -> float:
    """SAFFRON (Ramdas, Zrnic, Wainwright and Jordan 2018), lambda 0.5, initial wealth q / 2."""
    first = FALSE_GAINS / 2

    def since(at: int) -> int:
        return place - at - sum(at < one < place for one in told.candidates) - 1

    level = first * _GAMMA_16[max(0, since(0))]
    for number, at in enumerate(told.at):
        earned = FALSE_GAINS - first if number == 0 else FALSE_GAINS
        level += earned * _GAMMA_16[max(0, since(at))]
    return min(0.5, 0.5 * level)


def e_lond(place: int, told: Told) -> float:
    """e-LOND (Xu and Ramdas 2024) on e = p^-1/2 / 2, the calibrator of p values: told where e is 1 / (q g (D + 1))."""
    return (0.5 * lond(place, told)) ** 2


WAYS: dict[str, Callable[[int, Told], float]] = {
    "each at 2.5 %": keep_each,
    "alpha spending": spend,
    "LOND, shares for 40 ideas": lond,
    "LOND, shares j^-1.6": lond_decaying,
    "LORD++": lord,
    "SAFFRON": saffron,
    "e-LOND (calibrated p)": e_lond,
}
AGENTS = {
    "each idea once": "once",
    "asks variants of what looked best": "variants",
    "the same, and stops at its first gain": "stops",
}


@dataclass
class Count:
    """What a lab came to."""

    false: int
    told: int
    found: int
    """Ideas that help and were told."""
    helping: int


def draw_lab(way: Callable[[int, Told], float], agent: str, helping: int, dice: np.random.Generator) -> Count:
    """Carry one lab of 40 races. A variant of an idea that brings nothing brings nothing; one of an idea that helps is
    that idea once more."""
    effects = np.zeros(IDEAS)
    effects[dice.permutation(IDEAS)[:helping]] = _POWER_Z
    told, seen, false, found = Told(), {}, 0, set()
    fresh = list(range(IDEAS))
    for place in range(1, IDEAS + 1):
        again = agent != "once" and seen and dice.random() < 0.5
        idea = max(seen, key=lambda one: seen[one]) if again else fresh.pop()
        z = float(effects[idea] + dice.standard_normal())
        seen[idea] = max(z, seen.get(idea, z))
        level = way(place, told)
        p = 1.0 - _NORMAL.cdf(z)
        if p <= 0.5:
            told.candidates.append(place)
        if p <= level:
            told.at.append(place)
            seen.pop(idea)
            if effects[idea] > 0.0:
                found.add(idea)
            else:
                false += 1
            if agent == "stops":
                break
    return Count(false, len(told.at), len(found), helping)


def describe(labs: Sequence[Count]) -> str:
    """The false share in expectation, over all labs together, labs with a false gain, and what is found."""
    share = fmean(lab.false / max(1, lab.told) for lab in labs)
    pooled = sum(lab.false for lab in labs) / max(1, sum(lab.told for lab in labs))
    any_false = fmean(lab.false > 0 for lab in labs)
    helping = sum(lab.helping for lab in labs)
    found = f"{sum(lab.found for lab in labs) / helping:.0%}" if helping else "—"
    return f"{share:.1%} | {pooled:.1%} | {any_false:.1%} | {found}"


def race_live(effect: float, error: float, luck: float, dice: np.random.Generator) -> bool:
    """One race of four launches at most by the verdict's own statistics, at this one-sided error."""
    launches: list[Contrast] = []
    planned, within = 4, 0.008
    for count in range(1, planned + 1):
        mean = effect + luck * float(dice.standard_normal()) + within * float(dice.standard_normal())
        launches.append(
            Contrast(
                mean=mean, error=within, freedom=30.0, cycles=30, total=mean, total_error=within, per_step=mean,
                excess_error=0.0, slow_shares=(0.0, 0.0),
            )
        )  # fmt: skip
        look = look_at(
            launches, planned=planned, min_gain=0.01, forced=count == planned, alpha=min(0.05, 2.0 * error)
        )
        if look is not None and look.decision is not None:
            return look.decision == "change"
    return False


def carry_lab(helping: int, effect: float, luck: float, dice: np.random.Generator) -> Count:
    """One lab of 40 ideas, each asked once, by the product's rules and statistics."""
    effects = np.zeros(IDEAS)
    effects[dice.permutation(IDEAS)[:helping]] = effect
    told, false, found = 0, 0, set()
    for place in range(1, IDEAS + 1):
        idea = place - 1
        if race_live(float(effects[idea]), error_of(place, IDEAS, FALSE_GAINS, told), luck, dice):
            told += 1
            if effects[idea] > 0.0:
                found.add(idea)
            else:
                false += 1
    return Count(false, told, len(found), helping)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labs", type=int, default=4000)
    parser.add_argument("--looks", type=int, default=150, help="Labs of part two, of each row.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = [f"| agent | ideas that help | {' | '.join(WAYS)} |", "|---|---|" + "---|" * len(WAYS)]
    for agent, kind in AGENTS.items():
        for helping in (0, 1, 5):
            cells = []
            for way in WAYS.values():
                dice = np.random.default_rng([asked.seed, helping, *kind.encode()])
                told = describe([draw_lab(way, kind, helping, dice) for _ in range(asked.labs)]).split(" | ")
                cells.append(" · ".join((told[0], *(told[-1:] if helping else ()))))
            lines.append(f"| {agent} | {helping} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    lines += [
        "",
        "| launches differ by | gain of the ideas that help | ideas that help | false gains / gains | over all labs | "
        "labs with a false gain | helping ideas told |",
        "|---|---|---|---|---|---|---|",
    ]
    for luck in (0.0, 0.01, 0.03):
        for effect, helping in ((0.05, 0), (0.05, 1), (0.1, 1)):
            dice = np.random.default_rng([asked.seed, round(luck * 1e4), round(effect * 1e4), helping])
            labs = [carry_lab(helping, math.log1p(effect), luck, dice) for _ in range(asked.looks)]
            lines.append(f"| {luck:.0%} | {effect:+.0%} | {helping} | {describe(labs)} |")
            print(lines[-1], flush=True)
    if asked.out is not None:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
