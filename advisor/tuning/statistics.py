"""Steady state, block summaries and paired ratios with their intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from advisor.protocol.trials import BlockResult, BlockSummary
from advisor.tuning.student import t_quantile

_BATCHES = 6
_UNKNOWN_SE = 0.1
"""Standard error of ln(step time) claimed for a block too short to have one."""
_LEAST_S = 1e-9


@dataclass(frozen=True)
class LogInterval:
    """A mean of log ratios with its two-sided interval."""

    mean: float
    low: float
    high: float
    rounds: int

    @property
    def half_width(self) -> float:
        """Half of the interval, in log units."""
        return (self.high - self.low) / 2.0


def paired_interval(log_ratios: Sequence[float], alpha: float) -> LogInterval | None:
    """Return the Student t interval of the mean log ratio at two-sided level `alpha`; None below two rounds."""
    count = len(log_ratios)
    if count < 2:
        return None
    mean = fmean(log_ratios)
    half = t_quantile(1.0 - alpha / 2.0, count - 1) * stdev(log_ratios) / math.sqrt(count)
    return LogInterval(mean=mean, low=mean - half, high=mean + half, rounds=count)


def cut_warmup(values: Sequence[float]) -> tuple[int, bool]:
    """Return how many leading values to drop, and whether the cut still leaves room to believe in a steady state.

    MSER (White 1997) on the medians of small groups, which spikes do not move: the cut d minimises
    sum((g - mean)^2) / (K - d)^2 over the first half of the K groups. Groups hold five values where there are
    enough of them. A cut in the last quarter of its range is no steady state when what was cut last still differed.
    """
    size = 5 if len(values) >= 60 else 3 if len(values) >= 36 else 2
    count = len(values) // size
    if count < 6:
        return 0, True
    groups = [median(values[i * size : (i + 1) * size]) for i in range(count)]

    def score(cut: int) -> float:
        rest = groups[cut:]
        centre = fmean(rest)
        return sum((g - centre) ** 2 for g in rest) / len(rest) ** 2

    cuts = range(count // 2 + 1)
    best = min(cuts, key=lambda cut: (score(cut), cut))
    if best < 0.75 * (len(cuts) - 1):
        return best * size, True
    rest, last_cut = groups[best:], groups[best // 2 : best]
    differs = bool(last_cut) and abs(fmean(last_cut) - fmean(rest)) > 2.5 * stdev(rest)
    return best * size, not differs


def autocorrelate(values: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation; 0 for constant or fewer than three values."""
    if len(values) < 3:
        return 0.0
    centre = fmean(values)
    spread = sum((v - centre) ** 2 for v in values)
    if spread <= 0.0:
        return 0.0
    return sum((a - centre) * (b - centre) for a, b in pairwise(values)) / spread


def estimate_batch_medians(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error of the medians of six equal batches (fewer for fewer values)."""
    batches = min(_BATCHES, len(values))
    if batches < 2:
        return (values[0] if values else 0.0), _UNKNOWN_SE
    edges = [round(i * len(values) / batches) for i in range(batches + 1)]
    medians = [median(values[a:b]) for a, b in pairwise(edges)]
    return fmean(medians), stdev(medians) / math.sqrt(batches)


def find_percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values lies (linear interpolation)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarise_block(result: BlockResult) -> BlockSummary:
    """Return the robust statistics of a block.

    Step times are first averaged over the period after which behaviour repeats (local SGD's k), then the warm-up
    is cut. The throughput is that of all steady steps over their total time: spikes are a real cost.
    A block without timed steps (a relaunch is needed, the script ended) gives a summary with no steady step.
    """
    period = max(1, result.period)
    times = [max(t, _LEAST_S) for t in result.step_time_s]
    whole = len(times) - len(times) % period
    periods = [fmean(times[i : i + period]) for i in range(0, whole, period)] or times
    if not periods:
        return BlockSummary(
            samples_per_s=0.0, log_step_time=0.0, log_step_time_se=_UNKNOWN_SE, steady_steps=0, steady=False,
            median_step_time_s=0.0, p95_step_time_s=0.0,
        )  # fmt: skip
    cut, believable = cut_warmup([math.log(p) for p in periods])
    steady_periods = periods[cut:]
    logs = [math.log(p) for p in steady_periods]
    centre, error = estimate_batch_medians(logs)
    correlation = autocorrelate(logs)
    return BlockSummary(
        samples_per_s=result.samples_per_step / fmean(steady_periods),
        log_step_time=centre,
        log_step_time_se=error,
        steady_steps=len(steady_periods) * (period if whole else 1),
        steady=believable and not _halves_differ(logs, error, correlation),
        median_step_time_s=median(steady_periods),
        p95_step_time_s=find_percentile(steady_periods, 0.95),
        autocorrelation=max(-1.0, min(1.0, correlation)),
    )


def is_cut_short(result: BlockResult) -> bool:
    """Whether the script's end left too little of the block: fewer than two periods for each batch."""
    return result.script_ended and result.steps < 2 * _BATCHES * max(1, result.period)


def _halves_differ(logs: Sequence[float], error: float, correlation: float) -> bool:
    """Whether the block still drifts: its halves are far apart, and by more than slow noise explains."""
    if len(logs) < 12:
        return False
    middle = len(logs) // 2
    apart = abs(median(logs[:middle]) - median(logs[middle:]))
    return apart > max(0.02, 2.5 * error) and correlation > 0.5
