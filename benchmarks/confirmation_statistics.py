"""Do verdicts decide, are they right, and do their intervals hold the truth? Whole confirmations, simulated.

    python benchmarks/confirmation_statistics.py [--jobs 200] [--seed 1] [--only TEXT] [--out docs/results/…]

A job plans its launches from 60 probed steps, races baseline and winner in each, looks after each, and stops when it
has decided or its time is spent; a plan carried out undecided is followed by another one. Step times are drawn with
correlation, bursts of seconds and slow drift, with stalls of the machine, of one arm or in a rhythm, in launches that
differ by luck, of which the statistics are told nothing; the statistics are those that verdicts use. Moods: moods.py.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from noises import HOSTILE, NOISES, Noise, draw_times
from numpy.typing import NDArray

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Contrast
from advisor.tuning.history.launches import MOST_FREEDOM
from advisor.tuning.measure.contrast import contrast_arms, forecast_errors
from advisor.tuning.measure.pooling import UNKNOWN_LUCK, Luck, learn_luck
from advisor.tuning.measure.sequential import Look, look_at, plan_confirmation

ROOT = Path(__file__).parent.parent
_SEGMENT = 5
"""Steps of an arm before the other one takes over."""
_MIN_GAIN = 0.01
_STARTUP_S = 12.0
"""Seconds that a launch costs besides its race."""
GAINS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.2, 2.0)
LUCKS = (0.0, 0.005, 0.01)
"""Standard deviation of the winner's ln ratio from launch to launch."""
_LUCK_PER_GAIN = 5.0
"""More of it for large gains: a luck of 1 % goes with 5 % of the ln gain."""
_EARLIER_JOBS, _EARLIER_LAUNCHES = 4, 4
"""Verdicts of earlier jobs on the same machine, and launches of each, where its luck is known."""


def probe(noise: Noise, dice: np.random.Generator) -> tuple[float, ...]:
    """Sixty steps of the baseline."""
    place = np.zeros(60, dtype=np.int_)
    return tuple(draw_times(noise, np.full(60, noise.step_s), place, dice))


def race(noise: Noise, log_ratio: float, race_s: float, dice: np.random.Generator) -> Contrast:
    """Race a winner of that ln ratio against the baseline, in the runtime's order: at random, and then in reverse.

    The step after a change of arms is not timed.
    """
    mean_s = sum(noise.mean_s(log_ratio)) / 2.0
    cycles = max(2, round(race_s / (2 * _SEGMENT * mean_s)))
    forth = np.repeat(dice.random(-(-cycles // 2)) < 0.5, 4) ^ np.tile(
        [False, True, True, False], -(-cycles // 2)
    )
    is_strategy = forth[: 2 * cycles]
    changes = np.append(True, is_strategy[1:] != is_strategy[:-1])
    lengths = _SEGMENT + changes
    place = np.repeat(is_strategy, lengths).astype(np.int_)
    base_s = np.where(place == 1, noise.step_s * math.exp(-log_ratio), noise.step_s)
    times = draw_times(noise, base_s, place, dice)
    timed = np.ones(len(times), dtype=bool)
    timed[(np.cumsum(lengths) - lengths)[changes]] = False
    results = [_report(times[timed & (place == which)], (_SEGMENT,) * cycles) for which in (0, 1)]
    contrast = contrast_arms(results[1], results[0])
    if contrast is None:
        raise RuntimeError("a race without steps")
    return contrast


def _report(times: NDArray[np.float64], segments: tuple[int, ...]) -> BlockResult:
    return BlockResult(
        steps=len(times), step_time_s=tuple(times), segments=segments, samples_per_step=32.0, period=1,
        wall_s=float(times.sum()),
    )  # fmt: skip


@dataclass(frozen=True)
class Told:
    """How one job ended."""

    look: Look
    truth: float
    launches: int
    seconds: float

    @property
    def is_false(self) -> bool:
        """Whether it advises what is no gain, or excludes one that is worth a change."""
        gain = math.expm1(self.truth)
        if self.look.decision == "change":
            return gain <= 0.0
        return self.look.decision == "keep" and gain > _MIN_GAIN + 1e-9

    @property
    def covers(self) -> bool:
        """Whether the reported interval holds the truth."""
        return self.look.low <= self.truth <= self.look.high


def confirm(
    noise: Noise, gain: float, luck: float, minutes: Sequence[float], known: bool, dice: np.random.Generator
) -> Told:
    """Carry one job to its verdict; budgets after the first continue it where it ended undecided.

    `known`: earlier jobs on this machine have shown the luck of its launches.
    """
    probed = probe(noise, dice)
    apart = math.hypot(luck, _LUCK_PER_GAIN * luck * math.log1p(gain))
    believed = learn_from_earlier(noise, luck, dice) if known else UNKNOWN_LUCK
    launches: list[Contrast] = []
    ended: list[int] = []
    spent, look = 0.0, None
    for budget in minutes:
        plan = plan_confirmation(
            forecast_errors(probed, _SEGMENT), _STARTUP_S, budget * 60.0, _MIN_GAIN, luck=believed
        )
        left, planned = budget * 60.0, len(launches) + plan.launches
        while True:
            luckily = math.log1p(gain) + apart * float(dice.standard_normal())
            launches.append(race(noise, luckily, plan.race_s, dice))
            left, spent = left - plan.race_s - _STARTUP_S, spent + plan.race_s + _STARTUP_S
            forced = left < plan.race_s + _STARTUP_S
            look = look_at(
                launches, planned=planned, min_gain=_MIN_GAIN, forced=forced, ended=ended, luck=believed,
            )  # fmt: skip
            if look is None:
                raise RuntimeError("no look after a launch")
            if len(launches) == planned and not look.decision and not forced:
                ended.append(planned)
                planned += min(8, int(left / (plan.race_s + _STARTUP_S)))
            if look.decision or forced:
                break
        if look.decision:
            break
        ended = [*(e for e in ended if e < len(launches)), len(launches)]
    if look is None:
        raise ValueError("a job without a budget")
    return Told(look, noise.truth(math.log1p(gain)), len(launches), spent)


def learn_from_earlier(noise: Noise, luck: float, dice: np.random.Generator) -> Luck:
    """Return what the A/A verdicts of earlier jobs on the same machine teach."""
    seen = []
    for _ in range(_EARLIER_JOBS):
        found = [
            race(noise, luck * float(dice.standard_normal()), 10.0, dice) for _ in range(_EARLIER_LAUNCHES)
        ]
        seen.append([(c.mean, c.error) for c in found])
    return learn_luck(seen, MOST_FREEDOM)


def describe(label: str, told: Sequence[Told]) -> str:
    """One line of a table."""
    decided = [t for t in told if t.look.decision]
    changes = sum(t.look.decision == "change" for t in told)
    width = statistics.median((t.look.high - t.look.low) / 2.0 for t in told)
    return (
        f"| {label} | {math.expm1(told[0].truth):+.1%} | {changes / len(told):.1%} | "
        f"{(len(decided) - changes) / len(told):.1%} | {sum(t.is_false for t in told) / len(told):.1%} | "
        f"{sum(t.covers for t in told) / len(told):.1%} | ±{width:.2%} | "
        f"{statistics.fmean(t.launches for t in told):.1f} | {statistics.fmean(t.seconds for t in told):.0f} |"
    )


HEADER = """true gain | change | keep | false | interval holds the truth | half-width (median) | launches | seconds |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    """Jobs of one kind."""

    label: str
    noise: Noise
    gain: float
    lucks: tuple[float, ...] = LUCKS
    minutes: tuple[float, ...] = (5.0,)
    known: bool = False
    times: int = 1
    """How many times the usual number of jobs."""


def carry(asked: tuple[Row, int, int]) -> list[Told]:
    """Carry the jobs of a row, its lucks in turn; every job draws numbers of its own."""
    row, jobs, seed = asked
    return [
        confirm(
            row.noise, row.gain, row.lucks[i % len(row.lucks)], row.minutes, row.known,
            np.random.default_rng([seed, i, *row.label.encode(), round(1000 * row.gain)]),
        )
        for i in range(jobs * row.times)
    ]  # fmt: skip


def list_tables() -> Mapping[str, Sequence[Row]]:
    """Return the tables by their titles."""
    lucks = (0.0, 0.005, 0.01, 0.02, 0.03)
    return {
        "Five minutes for the verdict; launches differ by 0, 0.5 and 1 % in turn": [
            Row(f"{name}, {gain:+.0%}", noise, gain) for name, noise in NOISES.items() for gain in GAINS
        ],
        "No gain, and +3 %, by how much launches differ": [
            Row(f"{name}, launches differ by {luck:.1%}, {gain:+.0%}", NOISES[name], gain, (luck,), times=3)
            for gain in (0.0, 0.03)
            for name in ("calm", "usual")
            for luck in lucks
        ],
        "The same where earlier jobs on the machine have shown how much": [
            Row(f"{name}, known {luck:.1%}, {gain:+.0%}", NOISES[name], gain, (luck,), known=True, times=2)
            for gain in (0.0, 0.03)
            for name in ("calm", "usual")
            for luck in lucks
        ],
        "Slow steps of an arm's own, regular ones, and long ones of the machine": [
            Row(f"{name}, {gain:+.0%}", noise, gain)
            for name, noise in HOSTILE.items()
            for gain in (0.0, 0.03, 0.2)
        ],
        "A minute and a half for the verdict": [
            Row(f"{name}, {gain:+.0%}", noise, gain, minutes=(1.5,))
            for name, noise in NOISES.items()
            for gain in (0.0, 0.03, 0.2, 2.0)
        ],
        "The same, continued twice where undecided": [
            Row(f"{name}, {gain:+.0%}", noise, gain, minutes=(1.5, 1.5, 1.5))
            for name, noise in NOISES.items()
            for gain in (0.0, 0.02)
        ],
    }


def list_noises(jobs: int, dice: np.random.Generator) -> Iterator[str]:
    """Lines that say how far the ln ratio of one 60-second race errs, and by how much it says it does."""
    for name, noise in NOISES.items():
        found = [race(noise, 0.0, 60.0, dice) for _ in range(jobs)]
        probes = [forecast_errors(probe(noise, dice), _SEGMENT)(60.0) for _ in range(jobs)]
        figures = [
            _spread([c.mean for c in found]),
            _root(c.error for c in found),
            float(np.median(probes)),
            _spread([c.total for c in found]),
            _root(c.total_error for c in found),
        ]
        yield " | ".join([f"| {name}", *(f"{figure:.2%}" for figure in figures)]) + " |"


def _spread(values: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(v * v for v in values))


def _root(values: Iterator[float]) -> float:
    return math.sqrt(statistics.fmean(v * v for v in values))


NOISE_HEADER = """| noise | capped | by its own account | forecast of the probe | total | by its own account |
|---|---|---|---|---|---|"""


def main() -> None:
    """Run all jobs and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jobs", type=int, default=200, help="jobs of a row; some have two or three times as many"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose table and label have this in them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, help="the page to write (docs/results/confirmation_statistics.md)"
    )
    given = parser.parse_args()
    lines, every = [], []
    with ProcessPoolExecutor(given.processes) as pool:
        for title, rows in list_tables().items():
            wanted = [row for row in rows if given.only in f"{title}: {row.label}"]
            if not wanted:
                continue
            lines += ["", f"## {title}", "", f"| noise, injected gain | {HEADER}"]
            print(*lines[-4:], sep="\n", flush=True)
            for row, told in zip(
                wanted, pool.map(carry, [(row, given.jobs, given.seed) for row in wanted]), strict=True
            ):
                every += told
                lines.append(describe(row.label, told))
                print(lines[-1], flush=True)
    if given.out is None:
        return
    covered, false = (sum(getattr(t, name) for t in every) / len(every) for name in ("covers", "is_false"))
    text = [
        "# Do verdicts decide, and are they right?",
        "",
        f"`python benchmarks/confirmation_statistics.py --jobs {given.jobs} --seed {given.seed}`: whole confirmations",
        f"on simulated step times ({NOISES['usual'].step_s * 1000:.0f} ms, turns of {_SEGMENT} steps), "
        f"{_STARTUP_S:.0f} s for a launch, `min_gain` 1 %, with the",
        "statistics that verdicts use. The true gain is of the user's clock: mean step times, slow steps included.",
        "*False*: a change without a gain, or a keep that misses more than 1 %. *Launches",
        f"differ*: by that standard deviation of the ln ratio, and {_LUCK_PER_GAIN:.0f} times that share of itself.",
        "Decided as in [decision 11](../decisions/0011-how-a-verdict-is-reached.md).",
        "",
        f"Of all {len(every)} jobs, {covered:.1%} of the intervals hold the truth, and {false:.1%} of the answers are "
        "false.",
        "",
        "## A race of 60 s of two equal arms: the standard error of its ln ratio",
        "",
        NOISE_HEADER,
        *list_noises(150, np.random.default_rng(given.seed)),
        *lines,
        "",
    ]
    given.out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
