"""Do verdicts hold where the machine has moods? Whole verdicts with moods of seconds, of a minute, and of launches.

    PYTHONPATH=. python benchmarks/moods.py [--jobs 100] [--seed 1] [--only TEXT] [--processes 2] [--out docs/results/…]

A job has one launch of races as the search makes them and then the verdict's, planned and judged by the code that
judges real ones. Moods come and go by the clock, drawn anew in every job, for 10 to 50 % of the time: of the baseline
alone, which the strategy ends; of both by the same factor; of both by the same seconds; of the strategy alone. Answers
are held against the gains that the moods of that very job had.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from noises import CALM, NOISES, Noise, draw_times

from advisor.protocol.asked.jobs import Budget
from advisor.protocol.base import Value
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.history.budget import plan_verdict
from advisor.tuning.history.moods import find_mood_border
from advisor.tuning.stages.confirmation import Confirmation, confirm
from tests.unit.tuning.raced import BASE, Raced
from tests.unit.tuning.simulated_cluster import make_job, make_spec

_SEGMENT, _STEP_S, _STARTUP_S = 5, 0.04, 12.0
_MIN_GAIN, _BUDGET_S = 0.01, 300.0
_CHANGES: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
_SEARCH_RACES = 5
_SEEN = 0.05
"""Share of the job's measured time from which a mood was seen."""
KINDS = ("baseline", "both", "both by seconds", "strategy")
LASTS = (5.0, 60.0, math.inf)
"""Seconds of a slow mood on average; infinite: a launch is in one of them from end to end."""
SHARES = (0.1, 0.3, 0.5)
_SLOWER = {"baseline": 1.8, "both": 1.5, "both by seconds": 1.8, "strategy": 1.3}


@dataclass(frozen=True)
class Row:
    """Jobs of one kind."""

    kind: str
    gain: float
    """In the fast mood, as a fraction."""
    lasts_s: float
    share: float
    noise: str = "calm"

    @property
    def label(self) -> str:
        """As it stands in the table."""
        lasts = "launches" if math.isinf(self.lasts_s) else f"{self.lasts_s:.0f} s"
        return f"{self.kind} | {self.gain:+.0%} | {lasts} | {self.share:.0%}"

    def list_gains(self) -> tuple[float, float]:
        """ln ratio in the fast mood and in the slow one."""
        fast, slower = math.log1p(self.gain), _SLOWER[self.kind]
        slow = {
            "baseline": fast + math.log(slower),
            "both": fast,
            "both by seconds": math.log(slower / (math.exp(-fast) + slower - 1.0)),
            "strategy": fast - math.log(slower),
        }[self.kind]
        return fast, slow

    def list_steps(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Step of the baseline and of the strategy, in the fast mood and in the slow one, over the baseline's fast."""
        fast, slow = self.list_gains()
        longer = 1.0 if self.kind == "strategy" else _SLOWER[self.kind]
        return (1.0, math.exp(-fast)), (longer, longer * math.exp(-slow))


@dataclass
class Weather:
    """The mood of a machine as time goes by."""

    row: Row
    dice: np.random.Generator
    is_slow: bool = False
    left_s: float = 0.0
    spent: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Seconds of training in the fast and in the slow mood."""

    def start(self) -> None:
        """Let time pass until a launch trains."""
        if math.isinf(self.row.lasts_s) or not self.left_s:
            self.is_slow = bool(self.dice.random() < self.row.share)
            self.left_s = self._draw()
        self.pass_by(_STARTUP_S)

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.left_s -= seconds
        while self.left_s <= 0.0:
            self.is_slow = not self.is_slow
            self.left_s += self._draw()

    def _draw(self) -> float:
        lasts = self.row.lasts_s
        mean = lasts if self.is_slow else lasts * (1.0 - self.row.share) / self.row.share
        return math.inf if math.isinf(lasts) else float(self.dice.exponential(mean))


def race(weather: Weather, seconds: float, is_probe: bool = False) -> list[BlockResult]:
    """The results of a race of so many seconds: turns of five steps in random order, and then in reverse."""
    row, dice = weather.row, weather.dice
    noise: Noise = replace(NOISES[row.noise] if row.noise != "calm" else CALM, step_s=_STEP_S)
    steps = row.list_steps()
    mean_s = _STEP_S * statistics.fmean((*steps[0], *steps[1]))
    cycles = max(6, round(seconds / (2 * _SEGMENT * mean_s)))
    order = np.concatenate(
        [
            turns if dice.random() < 0.5 else turns[::-1]
            for turns in [np.array([0, 1, 1, 0])] * -(-cycles // 2)
        ]
    )[: 2 * cycles]
    place = np.repeat(order, _SEGMENT).astype(np.int_)
    if is_probe:
        place[:] = 0
    plain = draw_times(noise, np.full(len(place), _STEP_S), place, dice)
    times = np.zeros(len(place))
    for at, which in enumerate(place):
        times[at] = plain[at] * steps[weather.is_slow][which]
        weather.spent[weather.is_slow] += float(times[at])
        weather.pass_by(float(times[at]))
    arms = (0,) if is_probe else (0, 1)
    count = len(place) // _SEGMENT if is_probe else cycles
    return [Raced.make_result(times[place == arm].tolist(), (_SEGMENT,) * count) for arm in arms]


@dataclass(frozen=True)
class Told:
    """How one job ended."""

    verdict: Confirmation
    gains: tuple[float, ...]
    """ln ratio in every mood that took a twentieth of the job's measured time."""
    mixed: float
    """ln ratio over that time."""
    finds: bool
    """Whether the baseline was found to have moods."""
    launches: int

    @property
    def decision(self) -> str:
        """The answer."""
        return (self.verdict.look.decision if self.verdict.look else None) or "undecided"

    @property
    def is_false(self) -> bool:
        """Whether it advises a change that is no gain in some mood, or excludes one worth a change in all of them."""
        if self.decision == "change":
            return min(self.gains) <= 1e-9
        return self.decision == "keep" and min(self.gains) > math.log1p(_MIN_GAIN)

    def holds(self, *truths: float) -> bool:
        """Whether the reported interval holds these ln ratios."""
        look = self.verdict.look
        return look is not None and all(look.low <= truth <= look.high for truth in truths)


def carry(row: Row, dice: np.random.Generator) -> Told:
    """Carry one job to the end of its verdict."""
    weather = Weather(row, dice)
    raced = Raced(make_job(make_spec(budget=Budget(max_trials=4, max_seconds=_BUDGET_S))))
    weather.start()
    raced.launch().race(BASE, results=race(weather, 3.0, is_probe=True))
    for _ in range(_SEARCH_RACES):
        raced.race(BASE, (Purpose.SEARCH, _CHANGES, 0.0), results=race(weather, 2.4))
    plan = plan_verdict(raced.record).plan
    for count in range(1, max(2, plan.launches) + 1):
        weather.start()
        raced.launch().race(BASE, (Purpose.CONFIRM, _CHANGES, 0.0), results=race(weather, plan.race_s))
        verdict = confirm(raced.record, _CHANGES, forced=count == plan.launches)
        if verdict.is_decided:
            break
    whole = sum(weather.spent)
    gains = [g for g, spent in zip(row.list_gains(), weather.spent, strict=True) if spent >= _SEEN * whole]
    rates = [
        math.fsum(spent / steps[arm] for spent, steps in zip(weather.spent, row.list_steps(), strict=True))
        for arm in (0, 1)
    ]
    finds = find_mood_border(raced.record.spells) is not None
    return Told(verdict, tuple(gains), math.log(rates[1] / rates[0]), finds, count)


def carry_all(asked: tuple[Row, int, int]) -> list[Told]:
    """Carry the jobs of a row; every job draws numbers of its own."""
    row, jobs, seed = asked
    return [
        carry(row, np.random.default_rng([seed, i, *f"{row.label}{row.noise}".encode()])) for i in range(jobs)
    ]


def describe(label: str, told: Sequence[Told]) -> str:
    """One line of the table."""
    both = [t for t in told if len(t.gains) > 1]
    shares = [
        sum(t.decision == answer for t in told) / len(told) for answer in ("change", "keep", "undecided")
    ]
    changes = [t for t in told if t.decision == "change"]

    def rate(found: Sequence[bool]) -> str:
        return f"{sum(found) / len(found):.1%}" if found else "–"

    return " | ".join(
        [
            f"| {label}",
            *(f"{share:.0%}" for share in shares),
            rate([t.is_false for t in told]),
            rate([t.holds(*t.gains) for t in changes]),
            rate([t.holds(t.mixed) for t in told]),
            rate([t.finds for t in both]),
            f"{statistics.fmean(t.launches for t in told):.1f} |",
        ]
    )


HEAD = """# Do verdicts hold where the machine has moods?

`PYTHONPATH=. python benchmarks/moods.py --jobs {jobs} --seed {seed}`: whole verdicts, planned and judged by the code
that judges real ones. Moods come and go by the clock and are drawn anew in every job: a slow one lasts so long on
average and takes that share of the time. *False*: a change that is no gain in some mood that took a twentieth of the
job's measured time, or a keep where each has one worth a change."""
HEADER = (
    "| moods of | gain | lasts | share | change | keep | undecided | false "
    "| changes whose interval holds the gain of every mood seen | holds that over the job's time "
    "| moods found, where both were seen | launches |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def list_rows() -> list[Row]:
    """Return all rows."""
    return [
        Row(kind, gain, lasts, share, noise)
        for noise in ("calm", "usual")
        for kind in KINDS
        for gain in (0.0, 0.05, 1.0)
        for lasts in LASTS
        for share in SHARES
    ]


def main() -> None:
    """Run all jobs and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100, help="jobs of a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose noise and label have this in them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the page to write (docs/results/moods.md)")
    given = parser.parse_args()
    rows = [row for row in list_rows() if given.only in f"{row.noise} | {row.label}"]
    every: list[Told] = []
    lines: dict[str, list[str]] = {}
    equal: list[Told] = []
    with ProcessPoolExecutor(given.processes) as pool:
        print(HEADER, flush=True)
        for row, told in zip(
            rows, pool.map(carry_all, [(r, given.jobs, given.seed) for r in rows]), strict=True
        ):
            every += told
            equal += told if row.kind.startswith("both") and row.gain == 0.0 else []
            lines.setdefault(row.noise, []).append(describe(row.label, told))
            print(lines[row.noise][-1], flush=True)
    summary = _summarise(every, equal)
    print(summary)
    if given.out is not None:
        tables = [f"## Noise: {noise}\n\n{HEADER}\n" + "\n".join(told) for noise, told in lines.items()]
        head = HEAD.format(jobs=given.jobs, seed=given.seed)
        given.out.write_text("\n\n".join([head, summary, *tables]) + "\n")


def _summarise(every: Sequence[Told], equal: Sequence[Told]) -> str:
    decided = [t for t in every if t.decision != "undecided"]
    changed = [t for t in every if t.decision == "change"]
    covered = sum(t.holds(*t.gains) for t in changed) / max(1, len(changed))
    mixed = sum(t.holds(t.mixed) for t in every) / len(every)
    false = sum(t.is_false for t in every) / len(every)
    told = (
        f"Of all {len(every)} jobs {len(decided) / len(every):.0%} were decided; {covered:.1%} of the intervals of "
        f"changes hold the gain of every mood seen, {mixed:.1%} of all intervals the gain over the job's time, and "
        f"{false:.1%} of the answers are false."
    )
    if equal:
        changes = sum(t.decision == "change" for t in equal) / len(equal)
        told += (
            f" Of {len(equal)} jobs whose strategy is equal in every mood {changes:.1%} are told to change."
        )
    return told


if __name__ == "__main__":
    main()
