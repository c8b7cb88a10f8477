"""What knowledge of other jobs does to a search: none, of a job that is alike, and of one that is not.

    python benchmarks/transfer.py [--jobs 20] [--arms 10] [--processes 2]

Each job is a simulated surface of random numbers. Its alike neighbour is the same training with 0.7 to 1.4 times the
bandwidth and 0.8 to 1.25 times the computation; its unlike one is a job of another kind. What the
search of the neighbour recommends after as many arms is told to the job as an earlier job's strategy. The unlike one is
told as if the likeness had let it through, which is the worst that wrong knowledge can do; how often the real
likeness would let it through is counted.
"""

import argparse
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean

from generated_surfaces import Case, make_case
from replay import Replay, Standing
from simulated_surfaces import MODELS, SimulatedSurface

from advisor.protocol.measured.trials import EarlierJob
from advisor.tuning.space.similarity import LEAST_LIKENESS, measure_likeness, take_fingerprint

KINDS = ("communication", "compute", "input", "failing", "whole")
NEAR = 0.02
"""Regret at which the best counts as found."""
_APART = 11
"""Places between a job and its unlike one: kinds take turns, so that it is of another kind."""


@dataclass(frozen=True)
class Played:
    """One job, three times."""

    name: str
    passes: bool
    """Whether the likeness lets the unlike job's strategy through."""
    standings: tuple[tuple[Standing, ...], ...]
    """Without knowledge, with the alike job's, with the unlike job's."""


def draw_case(number: int) -> Case:
    """Return a job's numbers; kinds take turns."""
    dice = random.Random(f"transfer {number}")
    return Case(
        KINDS[number % len(KINDS)], dice.choice(sorted(MODELS)), dice.choice((2, 4, 8)), dice.choice((2, 4, 8)),
        round(10 ** dice.uniform(0.5, 2.3), 1), round(10 ** dice.uniform(1.5, 2.6)), round(dice.uniform(-0.1, 0.3), 2),
    )  # fmt: skip


def vary_case(case: Case, number: int) -> Case:
    """Return a job that is alike."""
    dice = random.Random(f"alike {number}")
    return replace(
        case,
        gbit=round(case.gbit * dice.uniform(0.7, 1.4), 1),
        backward_ms=case.backward_ms * dice.uniform(0.8, 1.25),
    )


def search(surface: SimulatedSurface, seed: int, arms: int, earlier: tuple[EarlierJob, ...] = ()) -> Replay:
    """Search a surface with what earlier jobs confirmed."""
    job = Replay(surface, seed, watched=True)
    job.earlier = earlier
    return job.search(arms)


def learn_from(surface: SimulatedSurface, arms: int, because: str) -> tuple[EarlierJob, ...]:
    """Return what a finished job on the surface would tell; nothing where it kept the script's settings."""
    found = search(surface, 1, arms).recommend()
    gain = surface.find(found).truth if found else None
    if gain is None or gain <= 0:
        return ()
    return (EarlierJob(job_id="earlier", changes=found, ratio=math.exp(gain), likeness=0.9, because=because),)


def play(number: int, arms: int) -> Played:
    """Play one job three times, with the same dice."""
    case = draw_case(number)
    surface = make_case(case)
    alike, unlike = make_case(vary_case(case, number)), make_case(draw_case(number + _APART))
    mine, theirs = take_fingerprint(surface.job), take_fingerprint(unlike.job)
    return Played(
        case.name,
        mine is not None and theirs is not None and measure_likeness(mine, theirs) >= LEAST_LIKENESS,
        tuple(
            tuple(search(make_case(case), 2, arms, told).standings)
            for told in ((), learn_from(alike, arms, "alike"), learn_from(unlike, arms, "not alike"))
        ),
    )


def _regret(standings: Sequence[Standing], arms: int) -> float:
    return [s for s in standings if s.arms <= arms][-1].regret


def _near(standings: Sequence[Standing], of: str, most: float) -> float:
    """Arms or seconds until the best counts as found; `most` where it never was."""
    return next((float(getattr(s, of)) for s in standings if s.regret <= NEAR), most)


def tabulate(played: Sequence[Played], arms: int) -> str:
    """Return the table, each figure a mean over the jobs, with the paired difference to no knowledge."""
    lines = [
        "| knowledge | regret at 5 arms | at 10 | arms until within 2 % | seconds | never |",
        "|---|---|---|---|---|---|",
    ]
    figures: tuple[Callable[[Sequence[Standing]], float], ...] = (
        lambda s: 100 * _regret(s, 5),
        lambda s: 100 * _regret(s, 10),
        lambda s: _near(s, "arms", arms + 1),
        lambda s: _near(s, "seconds", s[-1].seconds),
    )
    for place, label in enumerate(("none", "of an alike job", "of an unlike job")):
        columns = []
        for of in figures:
            values = [of(p.standings[place]) for p in played]
            apart = [v - of(p.standings[0]) for v, p in zip(values, played, strict=True)]
            middle = mean(apart)
            error = (sum((a - middle) ** 2 for a in apart) / max(1, len(apart) - 1) / len(apart)) ** 0.5
            columns.append(f"{mean(values):.2f}" + (f" ({middle:+.2f} ± {error:.2f})" if place else ""))
        never = sum(_near(p.standings[place], "arms", math.inf) == math.inf for p in played)
        lines.append(f"| {label} | " + " | ".join(columns) + f" | {never} of {len(played)} |")
    return "\n".join(lines)


def main() -> None:
    """Play all jobs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--arms", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.processes) as pool:
        tasks = [pool.submit(play, number, asked.arms) for number in range(asked.jobs)]
        played = []
        for task in tasks:
            played.append(task.result())
            print(played[-1].name, [round(100 * s[-1].regret, 2) for s in played[-1].standings], flush=True)
    print(tabulate(played, asked.arms))
    print(f"The likeness lets {sum(p.passes for p in played)} of {len(played)} unlike jobs through.")


if __name__ == "__main__":
    main()
