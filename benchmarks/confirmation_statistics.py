"""Do verdicts decide, are they right, and do their intervals hold the truth? Whole confirmations, simulated.

    python benchmarks/confirmation_statistics.py [--jobs 60] [--seed 1] [--out docs/results/confirmation_statistics.md]

A job plans its launches from 60 probed steps, races baseline and winner in each, looks after each, and stops when it
has decided, hardly can any more, or its time is spent; a plan carried out undecided is followed by another one. Step
times are drawn with correlation, stalls, bursts of seconds and slow drift, of which the statistics are told nothing;
the statistics are those that verdicts use.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from advisor.protocol.measured.trials import BlockResult, Contrast
from advisor.tuning.measure.contrast import contrast_arms, forecast_errors
from advisor.tuning.measure.sequential import Look, chance_to_decide, look_at, plan_confirmation

ROOT = Path(__file__).parent.parent
_SEGMENT = 5
"""Steps of an arm before the other one takes over."""
_MIN_GAIN = 0.01
_STARTUP_S = 12.0
"""Seconds that a launch costs besides its race."""
_HOPELESS = 0.05
"""Chance to decide below which a job ends."""
GAINS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.2, 2.0)
LUCKS = (0.0, 0.005, 0.01)
"""Standard deviation of the winner's ln ratio from launch to launch."""
_LUCK_PER_GAIN = 5.0
"""More of it for large gains: a luck of 1 % goes with 5 % of the ln gain."""

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """What makes step times differ within a launch."""

    step_s: float = 0.04
    spread: float = 0.1
    """Standard deviation of ln(step time), correlated by 0.4 from step to step."""
    stalls: float = 0.02
    """Share of steps that take longer by an exponential time of `stall` steps."""
    stall: float = 2.0
    bursts: float = 0.0
    """Slow-down of all steps while other work runs: half of the time, for two seconds on average."""
    drift: float = 0.0
    """Standard deviation of a random walk of ln(step time) over 60 s."""


NOISES: Mapping[str, Noise] = {
    "calm": Noise(spread=0.02, stalls=0.002, stall=1.0, drift=0.01),
    "usual": Noise(spread=0.105, stalls=0.02, stall=2.0, bursts=0.1, drift=0.05),
    "noisy": Noise(spread=0.2, stalls=0.05, stall=2.0, bursts=0.2, drift=0.1),
    "over-subscribed": Noise(spread=0.35, stalls=0.12, stall=6.0, bursts=0.3, drift=0.2),
}


def draw_steps(noise: Noise, count: int, dice: np.random.Generator) -> _Array:
    """Draw so many successive step times of one launch."""
    logs = noise.spread * _correlate(dice.standard_normal(count), 0.4)
    logs += noise.drift * math.sqrt(noise.step_s / 60.0) * np.cumsum(dice.standard_normal(count))
    if noise.bursts:
        flips = dice.random(count) < noise.step_s / 2.0
        logs += math.log1p(noise.bursts) * ((np.cumsum(flips) + dice.integers(2)) % 2)
    factor = 1.0 + (dice.random(count) < noise.stalls) * dice.exponential(noise.stall, count)
    times: _Array = noise.step_s * np.exp(logs) * factor
    return times


def _correlate(shocks: _Array, correlation: float) -> _Array:
    """A moving sum of shocks with about the variance and short memory of a first-order autoregression."""
    weights = correlation ** np.arange(8)
    result: _Array = np.convolve(shocks, weights / math.sqrt(float(weights @ weights)))[: len(shocks)]
    return result


def race(
    noise: Noise, log_ratio: float, race_s: float, dice: np.random.Generator
) -> tuple[Contrast, Contrast]:
    """Race a winner of that ln ratio against the baseline; return the contrast twice: alternated, and in two blocks."""
    mean_s = noise.step_s * (1.0 + noise.stalls * noise.stall) * (1.0 + math.exp(-log_ratio)) / 2.0
    cycles = max(2, round(race_s / (2 * _SEGMENT * mean_s)))
    times = draw_steps(noise, 2 * _SEGMENT * cycles, dice)
    second = np.repeat(dice.random(cycles) < 0.5, 2 * _SEGMENT)
    second ^= np.tile(np.repeat([False, True], _SEGMENT), cycles)
    halves = np.arange(len(times)) >= len(times) // 2
    return (
        _compare(times, second, (_SEGMENT,) * cycles, log_ratio),
        _compare(times, halves, (), log_ratio),
    )


def _compare(
    times: _Array, second: NDArray[np.bool_], segments: tuple[int, ...], log_ratio: float
) -> Contrast:
    own, other = times[second] * math.exp(-log_ratio), times[~second]
    contrast = contrast_arms(_report(own, segments), _report(other, segments))
    if contrast is None:
        raise RuntimeError("a race without steps")
    return contrast


def _report(times: _Array, segments: tuple[int, ...]) -> BlockResult:
    return BlockResult.model_construct(
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
    def is_right(self) -> bool:
        """Whether it is undecided, advises a gain that is one, or excludes one that is not worth it."""
        decision, gain = self.look.decision, math.expm1(self.truth)
        return decision is None or (gain > 0.0 if decision == "change" else gain < _MIN_GAIN + 1e-9)

    @property
    def covers(self) -> bool:
        """Whether the reported interval holds the truth."""
        return self.look.low <= self.truth <= self.look.high


def confirm(
    noise: Noise, gain: float, luck: float, minutes: Sequence[float], dice: np.random.Generator
) -> Told:
    """Carry one job to its verdict; budgets after the first continue it where it ended undecided."""
    probe = tuple(draw_steps(noise, 60, dice))
    launches: list[Contrast] = []
    ended: list[int] = []
    spent, look = 0.0, None
    for budget in minutes:
        plan = plan_confirmation(forecast_errors(probe, _SEGMENT), _STARTUP_S, budget * 60.0, _MIN_GAIN)
        left, planned = budget * 60.0, len(launches) + plan.launches
        while True:
            apart = math.hypot(luck, _LUCK_PER_GAIN * luck * math.log1p(gain))
            truth = math.log1p(gain) + apart * float(dice.standard_normal())
            launches.append(race(noise, truth, plan.race_s, dice)[0])
            left, spent = left - plan.race_s - _STARTUP_S, spent + plan.race_s + _STARTUP_S
            forced = left < plan.race_s + _STARTUP_S
            look = look_at(launches, planned=planned, min_gain=_MIN_GAIN, forced=forced, ended=ended)
            if look is None:
                raise RuntimeError("no look after a launch")
            if len(launches) == planned and not look.decision and not forced:
                ended.append(planned)
                planned += min(8, int(left / (plan.race_s + _STARTUP_S)))
            hopeless = (
                len(launches) >= 2 and chance_to_decide(launches, planned, _MIN_GAIN, ended=ended) < _HOPELESS
            )
            if look.decision or forced or hopeless:
                break
        if look.decision:
            break
        ended = [*(e for e in ended if e < len(launches)), len(launches)]
    if look is None:
        raise ValueError("a job without a budget")
    return Told(look, math.log1p(gain), len(launches), spent)


def describe(label: str, told: Sequence[Told]) -> str:
    """One line of a table."""
    decided = [t for t in told if t.look.decision]
    changes = sum(t.look.decision == "change" for t in told)
    wrong = sum(not t.is_right for t in told)
    width = statistics.median((t.look.high - t.look.low) / 2.0 for t in told)
    return (
        f"| {label} | {changes / len(told):.1%} | {(len(decided) - changes) / len(told):.1%} | "
        f"{wrong / len(told):.1%} | {sum(t.covers for t in told) / len(told):.1%} | ±{width:.2%} | "
        f"{statistics.fmean(t.launches for t in told):.1f} | {statistics.fmean(t.seconds for t in told):.0f} |"
    )


HEADER = """change | keep | wrong | interval holds the truth | half-width (median) | launches | seconds |
|---|---|---|---|---|---|---|---|"""


def run_jobs(
    noise: Noise, gain: float, lucks: Sequence[float], minutes: Sequence[float], jobs: int, seed: int
) -> list[Told]:
    """Carry so many jobs, the lucks in turn; every cell draws numbers of its own."""
    found = []
    for i in range(jobs):
        dice = np.random.default_rng(
            [seed, i, round(1000 * gain), round(10 * sum(minutes)), round(1e4 * noise.spread)]
        )
        found.append(confirm(noise, gain, lucks[i % len(lucks)], minutes, dice))
    return found


def list_noises(dice: np.random.Generator) -> Iterator[str]:
    """Lines that say how far the ln ratio of one 60-second race errs, and by how much it says it does."""
    for name, noise in NOISES.items():
        pairs = [race(noise, 0.0, 60.0, dice) for _ in range(150)]
        fine, coarse = [p[0] for p in pairs], [p[1] for p in pairs]
        probes = [forecast_errors(tuple(draw_steps(noise, 60, dice)), _SEGMENT)(60.0) for _ in range(150)]
        figures = [
            _spread([c.mean for c in fine]),
            _root(c.error for c in fine),
            float(np.median(probes)),
            _spread([c.total for c in fine]),
            _spread([c.mean for c in coarse]),
            _root(c.error for c in coarse),
        ]
        yield " | ".join([f"| {name}", *(f"{figure:.2%}" for figure in figures)]) + " |"


def _spread(values: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(v * v for v in values))


def _root(values: Iterator[float]) -> float:
    return math.sqrt(statistics.fmean(v * v for v in values))


NOISE_HEADER = """| noise | alternated | by its own account | forecast of the probe | total wall time | two blocks | \
by their own account |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """Run all jobs and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jobs", type=int, default=60, help="jobs of one noise and gain; A/A rows have three times as many"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "confirmation_statistics.md")
    given = parser.parse_args()
    jobs, seed = given.jobs, given.seed

    noises = list(list_noises(np.random.default_rng(seed)))
    every: list[Told] = []
    gains, equal, short, continued = [], [], [], []
    for name, noise in NOISES.items():
        for gain in GAINS:
            told = run_jobs(noise, gain, LUCKS, (5.0,), jobs, seed)
            every += told
            gains.append(describe(f"{name}, {gain:+.0%}", told))
        for luck in LUCKS:
            equal.append(
                describe(f"{name}, {luck:.1%}", run_jobs(noise, 0.0, (luck,), (5.0,), 3 * jobs, seed + 1))
            )
        for gain in (0.0, 0.03, 0.2, 2.0):
            short.append(describe(f"{name}, {gain:+.0%}", run_jobs(noise, gain, LUCKS, (1.5,), jobs, seed)))
        for gain in (0.0, 0.02):
            told = run_jobs(noise, gain, LUCKS, (1.5, 1.5, 1.5), jobs, seed)
            continued.append(describe(f"{name}, {gain:+.0%}", told))
        print(f"{name}: done", flush=True)
    covered, wrong = (
        sum(t.covers for t in every) / len(every),
        sum(not t.is_right for t in every) / len(every),
    )
    text = [
        "# Do verdicts decide, and are they right?",
        "",
        f"`python benchmarks/confirmation_statistics.py --jobs {jobs} --seed {seed}`: whole confirmations on simulated "
        "step times",
        f"({NOISES['usual'].step_s * 1000:.0f} ms, segments of {_SEGMENT} steps, {_STARTUP_S:.0f} s for a launch, "
        "`min_gain` 1 %), with the statistics that verdicts use.",
        "*Wrong*: a change without a gain, or a keep that misses more than 1 %. *Launches differ*: by that standard "
        "deviation",
        f"of the ln ratio from launch to launch, and {_LUCK_PER_GAIN:.0f} times that share of itself. Decided as in",
        "[decision 11](../decisions/0011-how-a-verdict-is-reached.md).",
        "",
        f"Of all {len(every)} jobs of the second table, {covered:.1%} of the intervals hold the truth, and "
        f"{wrong:.1%} of the answers are wrong.",
        "",
        "## A race of 60 s of two equal arms: the standard error of its ln ratio",
        "",
        NOISE_HEADER,
        *noises,
        "",
        "## Five minutes for the verdict; launches differ by 0, 0.5 and 1 % in turn",
        "",
        f"| noise, true gain | {HEADER}",
        *gains,
        "",
        "## No gain, five minutes, by how much launches differ",
        "",
        f"| noise, launches | {HEADER}",
        *equal,
        "",
        "## A minute and a half for the verdict",
        "",
        f"| noise, true gain | {HEADER}",
        *short,
        "",
        "## The same, continued twice where undecided",
        "",
        f"| noise, true gain | {HEADER}",
        *continued,
        "",
    ]
    given.out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
