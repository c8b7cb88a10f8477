"""What knowledge of other jobs does to a search: none, of a job that is alike, and of one that is not.

    python benchmarks/transfer.py [--first 0] [--jobs 20] [--arms 10] [--seeds 1] [--processes 2]

Each job is a simulated surface of random numbers. Its alike neighbour is the same training with 0.7 to 1.4 times the
bandwidth and 0.8 to 1.25 times the computation; its unlike one is a job of another kind. What the
search of the neighbour recommends after as many arms is told to the job as an earlier job's strategy, with a likeness
at which the search goes on. "As told" is the alike job's strategy with the likeness that the product finds: from 0.97
on the search ends where the first race confirms it. The unlike one is told as if the likeness had let it through,
which is the worst that wrong knowledge can do; its "as told" is what the likeness lets through of that.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean, stdev

from generated_surfaces import Case, draw_case, make_case
from replay import Replay, Standing
from simulated_surfaces import SimulatedSurface

from advisor.protocol.measured.trials import EarlierJob
from advisor.tuning.space.similarity import LEAST_LIKENESS, measure_likeness, take_fingerprint

KINDS = ("communication", "compute", "input", "failing", "whole")
NEAR = 0.02
"""Regret at which the best counts as found."""
KNOWLEDGE = (
    "none", "of an alike job", "of an alike job, as told", "of an unlike job", "of an unlike job, as told",
)  # fmt: skip
_UNSURE = 0.9
"""Likeness at which an earlier job's strategy is tried and the search goes on whatever it brings."""
_APART = 11
"""Places between a job and its unlike one: kinds take turns, so that it is of another kind."""


@dataclass(frozen=True)
class Played:
    """One job, with each knowledge."""

    name: str
    passes: bool
    """Whether the likeness lets the unlike job's strategy through."""
    likeness: float
    """Of the alike job."""
    standings: tuple[tuple[tuple[Standing, ...], ...], ...]
    """For each of `KNOWLEDGE` the standings of a search for each seed."""


def _draw(number: int) -> Case:
    return draw_case(f"transfer {number}", KINDS[number % len(KINDS)])


def vary_case(case: Case, number: int) -> Case:
    """Return a job that is alike."""
    dice = random.Random(f"alike {number}")
    return replace(
        case,
        gbit=round(case.gbit * dice.uniform(0.7, 1.4), 1),
        backward_ms=case.backward_ms * dice.uniform(0.8, 1.25),
    )


def search(
    surface: SimulatedSurface,
    seed: int,
    arms: int,
    earlier: tuple[EarlierJob, ...] = (),
    watched: bool = True,
) -> Replay:
    """Search a surface with what earlier jobs confirmed."""
    job = Replay(surface, seed, watched=watched)
    job.earlier = earlier
    return job.search(arms)


def learn_from(surface: SimulatedSurface, arms: int, because: str) -> tuple[EarlierJob, ...]:
    """Return what a finished job on the surface would tell; nothing where it kept the script's settings."""
    found = search(surface, 1, arms, watched=False).recommend()
    gain = surface.find(found).truth if found else None
    if gain is None or gain <= 0:
        return ()
    return (
        EarlierJob(job_id="earlier", changes=found, ratio=math.exp(gain), likeness=_UNSURE, because=because),
    )


def play(number: int, arms: int, seeds: int) -> Played:
    """Play one job with each knowledge, each time with the same dice."""
    case = _draw(number)
    surface = make_case(case)
    alike, unlike = make_case(vary_case(case, number)), make_case(_draw(number + _APART))
    near, far = _measure_likeness(surface, alike), _measure_likeness(surface, unlike)
    unsure = learn_from(alike, arms, "alike")
    wrong = learn_from(unlike, arms, "not alike")
    told = (
        (), unsure, _tell(unsure, near), wrong, _tell(wrong, far) if far >= LEAST_LIKENESS else (),
    )  # fmt: skip
    return Played(
        case.name,
        far >= LEAST_LIKENESS,
        near,
        tuple(
            tuple(tuple(search(surface, 2 + seed, arms, earlier).standings) for seed in range(seeds))
            for earlier in told
        ),
    )


def _tell(earlier: tuple[EarlierJob, ...], likeness: float) -> tuple[EarlierJob, ...]:
    return tuple(one.model_copy(update={"likeness": likeness}) for one in earlier)


def _measure_likeness(one: SimulatedSurface, other: SimulatedSurface) -> float:
    mine, theirs = take_fingerprint(one.job), take_fingerprint(other.job)
    return measure_likeness(mine, theirs) if mine is not None and theirs is not None else 0.0


def _regret(standings: Sequence[Standing], arms: int) -> float:
    return [s for s in standings if s.arms <= arms][-1].regret


def _find_near(standings: Sequence[Standing]) -> Standing | None:
    """Where the best counts as found; None where it never was."""
    return next((s for s in standings if s.regret <= NEAR), None)


def tabulate(played: Sequence[Played], arms: int) -> str:
    """Return the table, each figure a mean over the jobs, with the paired difference to no knowledge.

    A job's figure is the mean over its seeds. A search that never came near counts with one arm more than it could
    have, and with the time of the longest search of its job and seed.
    """

    def count_arms(standings: Sequence[Standing], _: float) -> float:
        near = _find_near(standings)
        return near.arms if near else arms + 1

    def count_seconds(standings: Sequence[Standing], longest: float) -> float:
        near = _find_near(standings)
        return near.seconds if near else longest

    figures: Mapping[str, Callable[[Sequence[Standing], float], float]] = {
        "regret at 3 arms": lambda s, _: 100 * _regret(s, 3),
        "at 5": lambda s, _: 100 * _regret(s, 5),
        f"at {arms}": lambda s, _: 100 * _regret(s, arms),
        "arms until within 2 %": count_arms,
        "seconds": count_seconds,
        "never": lambda s, _: 100.0 * (_find_near(s) is None),
        "seconds spent": lambda s, _: s[-1].seconds,
    }
    lines = [f"| knowledge | {' | '.join(figures)} |", "|---" * (len(figures) + 1) + "|"]
    values: dict[tuple[int, str], list[float]] = {}
    for job in played:
        longest = [max(s[-1].seconds for s in of_seed) for of_seed in zip(*job.standings, strict=True)]
        for place, searches in enumerate(job.standings):
            for name, of in figures.items():
                found = mean(of(s, most) for s, most in zip(searches, longest, strict=True))
                values.setdefault((place, name), []).append(found)
    for place, label in enumerate(KNOWLEDGE):
        columns = []
        for name in figures:
            mine = values[place, name]
            apart = [a - b for a, b in zip(mine, values[0, name], strict=True)]
            error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else math.inf
            columns.append(f"{mean(mine):.2f}" + (f" ({mean(apart):+.2f} ± {error:.2f})" if place else ""))
        lines.append(f"| {label} | " + " | ".join(columns) + " |")
    return "\n".join(lines)


def main() -> None:
    """Play all jobs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--arms", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1, help="searches of each job with each knowledge")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.jobs)
    with ProcessPoolExecutor(asked.processes) as pool:
        tasks = [pool.submit(play, number, asked.arms, asked.seeds) for number in numbers]
        played = []
        for task in tasks:
            played.append(task.result())
            ends = [round(100 * mean(s[-1].regret for s in told), 2) for told in played[-1].standings]
            print(f"{played[-1].name} {ends}, alike: {played[-1].likeness:.2f}", flush=True)
    print(tabulate(played, asked.arms))
    print(f"The likeness lets {sum(p.passes for p in played)} of {len(played)} unlike jobs through.")


if __name__ == "__main__":
    main()
