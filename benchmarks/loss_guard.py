"""Does the loss guard hold its level, and what does it see?

    python benchmarks/loss_guard.py [--jobs 4000] [--processes 2] [--out docs/results/loss_guard.md]

Losses are drawn; pairs are put together (`pool_pairs`), readings spend (`find_level`) and are judged (`judge_contrast`)
by the product's own functions. The unit is the tolerated lag, a quarter of what the baseline learns in a pair.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from sessions import ROOT

from advisor.tuning.history.losses import LossPair, pool_pairs
from advisor.tuning.measure.levels import FIRST_LOOK, find_level
from advisor.tuning.measure.student_t import t_quantile
from advisor.tuning.stages.loss_guard import judge_contrast

_BATCHES = 12
"""Of a check of local SGD with k = 4; at most 32 are taken."""
_LEARNED = 4.0
_PLANNED = 8
"""Launches of the largest plan; what follows is continued launch by launch."""
_PAIR, _REST = 1.0, 1.0
"""Standard deviation of a pair's difference over all batches, and of what one cell has besides."""
_BATCH = {"none": 0.0, "each launch its own": 0.5, "all launches the same": 0.5}
"""Standard deviation over batches of a lag, in the mean over those of a launch."""
_CASES = ((2, 2), (2, 3), (2, 6), (4, 1), (4, 3), (6, 2), (8, 1), (8, 2), (13, 1))
"""Launches, and pairs in each."""


@dataclass(frozen=True)
class Told:
    """What the readings of one job came to."""

    passed: bool
    harmed: bool
    passed_before: bool
    """Each reading at 2.5 %, the batches' spread left out: the rule until decision 10 was changed."""


def draw(
    dice: np.random.Generator, launches: int, pairs: int, batches: str, lag: float
) -> Iterator[list[LossPair]]:
    """Yield the pairs of one launch after another."""
    size, root = (pairs, _BATCHES), math.sqrt(_BATCHES)
    spread = np.zeros((2, _BATCHES))
    for launch in range(launches):
        if launch == 0 or batches != "all launches the same":
            spread = dice.normal(0.0, _BATCH[batches] * root, (2, _BATCHES))
        mine, theirs = (
            dice.normal(0.0, _PAIR / math.sqrt(2.0), (pairs, 1)) + dice.normal(0.0, _REST, size)
            for _ in range(2)
        )
        yield [
            LossPair(
                difference=fmean(differences), error=stdev(differences) / root, fall=fmean(falls),
                fall_error=stdev(falls) / root, level=0.0, steps=64,
                on_batches=tuple(zip(differences, falls, strict=True)),
            )
            for differences, falls in zip(
                (lag + spread[0] + mine - theirs).tolist(), (_LEARNED + spread[1] - theirs).tolist(), strict=True
            )
        ]  # fmt: skip


def run(launches: int, pairs: int, batches: str, lag: float, seed: int) -> Told:
    """Read the losses of one job after each launch from the second on; the first answer stands."""
    found: list[LossPair] = []
    passed = harmed = passed_before = False
    dice = np.random.default_rng(seed)
    for count, more in enumerate(draw(dice, launches, pairs, batches, lag), 1):
        found += more
        if count < FIRST_LOOK:
            continue
        contrast = pool_pairs(found)
        if not (passed or harmed):
            level = find_level(count, min(launches, _PLANNED), forced=False)
            finding = judge_contrast(contrast, 1.0, math.inf, level)
            passed, harmed = finding.passed, finding.harmed
        error = stdev(pair.difference for pair in found) / math.sqrt(len(found))
        worst = contrast.difference + t_quantile(0.975, len(found) - 1) * error
        passed_before = passed_before or (contrast.learned and worst < 0.25 * contrast.fall)
    return Told(passed, harmed, passed_before)


def carry(case: tuple[int, int, str], jobs: int) -> str:
    """Return one line of the table."""
    launches, pairs, batches = case
    limit = [run(launches, pairs, batches, 1.0, seed) for seed in range(jobs)]
    equal = [run(launches, pairs, batches, 0.0, seed) for seed in range(jobs)]

    def share(told: Sequence[bool]) -> str:
        return f"{fmean(told):.1%}".replace("%", " %")

    return (
        f"| {launches * pairs} | {launches - 1} | {batches} | {share([t.passed for t in limit])} | "
        f"{share([t.passed_before for t in limit])} | {share([t.harmed for t in limit])} | "
        f"{share([t.passed for t in equal])} | {share([t.passed_before for t in equal])} |"
    )


def main() -> None:
    """Run the cases and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "loss_guard.md")
    given = parser.parse_args()
    cases = [(*case, batches) for case in _CASES for batches in _BATCH]
    with ProcessPoolExecutor(given.processes) as pool:
        rows = list(pool.map(partial(carry, jobs=given.jobs), cases))
    lines = [
        "# Does the loss guard hold its level?", "",
        f"`python benchmarks/loss_guard.py --jobs {given.jobs}`", "",
        f"{given.jobs} simulated jobs a figure. *At the limit* a strategy loses exactly what is tolerated: 2.5 % may",
        "pass, 2.5 % may be refused. *Harmless* it loses nothing. One pair's difference has a standard deviation as",
        "large as the limit; the spread over the 12 batches of a check adds half of that, where there is one, to all",
        "pairs of a launch. The losses are read after each launch from the second on, and the first answer stands.",
        f"*Before*: each reading at 2.5 %, without the batches' spread. 2.5 % of {given.jobs} jobs are known to",
        f"± {196.0 * math.sqrt(0.025 * 0.975 / given.jobs):.1f} %.", "",
        "| pairs | readings | batches' spread | passed at the limit | before | refused at the limit | harmless "
        "passed | before |",
        "|---|---|---|---|---|---|---|---|",
        *rows, "",
    ]  # fmt: skip
    given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
