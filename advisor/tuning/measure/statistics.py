"""Steady state, a block's robust summary with its standard error, and the interval of paired ratios.

Everything is in ln(step time) or in ln ratios, so that differences are relative and a ratio's interval is never below
zero. The assumptions, their sources and the coverage that simulations measured: docs/decisions/0009.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import BlockSummary
from advisor.tuning.measure.contrast import contrast_arms
from advisor.tuning.measure.student_t import t_quantile

_MOST_BATCHES = 6
_FEWEST_BATCHES = 3
_LEAST_IN_BATCH = 3
"""A median of three survives one stall."""
_UNKNOWN_SE = 0.1
"""Standard error of ln(step time) claimed for a block too short to have one."""
_WORTH_CUTTING = 3.5
_MATERIAL_TREND = 0.02
_TREND_LEVEL = 0.05
_STARTING = 5
_EVENT = math.log(1.5)
_MOST_CORRELATION = 0.95
_LEAST_S = 1e-9


# --- rounds ------------------------------------------------------------------------------------------


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


# --- steady state ------------------------------------------------------------------------------------


def cut_warmup(values: Sequence[float]) -> tuple[int, bool]:
    """Return how many leading values to drop, and whether the cut still leaves room to believe in a steady state.

    MSER (White 1997) on the medians of small groups, which spikes do not move: the cut d minimises
    sum((g - mean)^2) / (K - d)^2 over the first half of the K groups. Groups hold five values where there are
    enough of them. The cut is made only where what it drops differs from what it keeps by 3.5 standard errors: cutting
    noise for looking quieter would make the rest's error too small. A cut in the last quarter of its range is no
    steady state when what was cut last still differed.
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

    most = count // 2
    best = min(range(most + 1), key=lambda cut: (score(cut), cut))
    dropped, rest = groups[:best], groups[best:]
    if not dropped:
        return 0, True
    spread = _spread(rest)
    if abs(fmean(dropped) - fmean(rest)) < _WORTH_CUTTING * spread * math.sqrt(1.0 / best + 1.0 / len(rest)):
        return 0, True
    differs = abs(fmean(groups[best // 2 : best]) - fmean(rest)) > 2.5 * spread
    return best * size, best < 0.75 * most or not differs


def skip_events(logs: Sequence[float]) -> int:
    """Return how many leading values to drop so that no single event of the switch is left among the first five.

    A compilation, new buckets or a growing allocator cost one enormous step, which no group's median shows. A step
    half as long again as the median, and six robust standard deviations above it, is taken for one.
    """
    if len(logs) < 2 * _STARTING:
        return 0
    centre, spread = _locate(logs)
    limit = centre + max(_EVENT, 6.0 * spread)
    return max((i + 1 for i in range(_STARTING) if logs[i] > limit), default=0)


def _has_trend(medians: Sequence[float]) -> tuple[float, bool]:
    """Return the change of a straight line through the batch medians over the block, and whether it is a trend.

    A trend is material (2 %) and significant: the t test of a regression's slope at 5 %, with batches - 2 degrees
    of freedom.
    """
    count = len(medians)
    if count < _FEWEST_BATCHES:
        return 0.0, False
    centre = fmean(medians)
    places = [i - (count - 1) / 2.0 for i in range(count)]
    square = sum(p * p for p in places)
    slope = sum(p * m for p, m in zip(places, medians, strict=True)) / square
    rest = sum((m - centre - slope * p) ** 2 for p, m in zip(places, medians, strict=True))
    error = math.sqrt(rest / (count - 2) / square)
    critical = t_quantile(1.0 - _TREND_LEVEL / 2.0, count - 2)
    return slope * count, abs(slope) * count > _MATERIAL_TREND and abs(slope) > critical * error


# --- blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Centre:
    """A location with its standard error, from batch medians."""

    mean: float
    error: float
    freedom: int
    """Degrees of freedom of the error: batches - 1."""
    medians: tuple[float, ...] = ()
    autocorrelation: float = 0.0
    """Of the values, without what sticks out."""


def estimate_centre(values: Sequence[float]) -> Centre:
    """Return the mean of the medians of up to six equal batches, with its standard error.

    Batch means (Conway 1963), with medians because 2 % of stalls make the interval of a mean cover 58 to 76 % only.
    `mean ± t(freedom) * error` is the interval. Batches of a correlated series still resemble their neighbours, so
    that their spread alone is too small. Where the values look like a first-order autoregression of that lag-1
    correlation, the error is that spread times what theory says is missing: with V(m) the variance of the mean of m
    successive values, batches of b of n values have E[spread^2 / k] = (V(b) - V(n)) / (k - 1), and the truth is V(n).
    """
    count = len(values)
    batches = min(count, _MOST_BATCHES, max(_FEWEST_BATCHES, count // _LEAST_IN_BATCH))
    if batches < 2:
        return Centre(values[0] if values else 0.0, _UNKNOWN_SE, 1)
    edges = [round(i * count / batches) for i in range(batches + 1)]
    medians = tuple(median(values[a:b]) for a, b in pairwise(edges))
    seen = autocorrelate(tame(values))
    correlation = _correct_correlation(seen, count)
    whole, batch = _variance_of_mean(count, correlation), _variance_of_mean(count / batches, correlation)
    missing = max(1.0, whole * (batches - 1) / (batch - whole))
    error = math.sqrt(missing / batches) * _spread(medians)
    return Centre(fmean(medians), error, batches - 1, medians, seen)


def autocorrelate(values: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation; 0 for constant or fewer than three values."""
    if len(values) < 3:
        return 0.0
    centre = fmean(values)
    spread = sum((v - centre) ** 2 for v in values)
    if spread <= 0.0:
        return 0.0
    return sum((a - centre) * (b - centre) for a, b in pairwise(values)) / spread


def _correct_correlation(correlation: float, count: int) -> float:
    """A short series shows too little correlation, by about (1 + 3 r) / n (Kendall 1954); negative ones count as 0."""
    return max(0.0, min(_MOST_CORRELATION, correlation + (1.0 + 3.0 * correlation) / count))


def _variance_of_mean(count: float, correlation: float) -> float:
    """The variance of the mean of so many successive values of a first-order autoregression of variance 1."""
    r = correlation
    return ((1.0 + r) / (1.0 - r) - 2.0 * r * (1.0 - math.pow(r, count)) / (count * (1.0 - r) ** 2)) / count


def tame(values: Sequence[float]) -> list[float]:
    """Return the values with outliers pulled in to three robust standard deviations from the median."""
    centre, spread = _locate(values)
    return [min(max(v, centre - 3.0 * spread), centre + 3.0 * spread) for v in values]


def _spread(values: Sequence[float]) -> float:
    """The standard deviation of a sample; the library's goes by fractions, and takes far longer."""
    centre = fmean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def _locate(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the median absolute deviation scaled to a normal distribution's standard deviation."""
    centre = median(values)
    return centre, 1.4826 * median(abs(v - centre) for v in values)


def find_percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values lies (linear interpolation)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarise_race(result: BlockResult, reference: BlockResult | None) -> BlockSummary:
    """Return a block's statistics with what it says against the first arm of its race; None for that arm itself."""
    contrast = contrast_arms(result, reference) if reference is not None and result.step_time_s else None
    return summarise_block(result).model_copy(update={"contrast": contrast})


def summarise_block(result: BlockResult) -> BlockSummary:
    """Return the robust statistics of a block.

    Step times are first averaged over the period after which behaviour repeats (local SGD's k), then the warm-up
    is cut. The throughput is that of all steady steps over their total time: spikes are a real cost. An unsteady
    block's standard error also holds half of its trend, which is about how far off its centre may be.
    A block without timed steps (a relaunch is needed, the script ended) gives a summary with no steady step.
    """
    period = max(1, result.period)
    times = [max(t, _LEAST_S) for t in result.step_time_s]
    whole = len(times) - len(times) % period
    means = [fmean(times[i : i + period]) for i in range(0, whole, period)] if period > 1 else times
    periods = means or times
    if not periods:
        return BlockSummary(
            samples_per_s=0.0, log_step_time=0.0, log_step_time_se=_UNKNOWN_SE, steady_steps=0, steady=False,
            median_step_time_s=0.0, p95_step_time_s=0.0,
        )  # fmt: skip
    cut, believable, events = 0, True, 0
    if not result.segments:
        # An arm of a race has settled before its first timed step, and its turns are spread over the whole race.
        cut, believable = cut_warmup([math.log(p) for p in periods])
        events = skip_events([math.log(p) for p in periods[cut:]])
    kept = periods[cut:]
    logs = [math.log(p) for p in kept[events:]]
    centre = estimate_centre(logs)
    change, trends = (0.0, False) if result.segments else _has_trend(centre.medians)
    steady = believable and not trends
    middle = median(kept)
    return BlockSummary(
        samples_per_s=result.samples_per_step / fmean(kept),
        log_step_time=centre.mean,
        log_step_time_se=centre.error if steady else math.hypot(centre.error, change / 2.0),
        freedom=centre.freedom,
        steady_steps=len(kept) * (period if whole else 1),
        steady=steady,
        median_step_time_s=middle,
        p95_step_time_s=find_percentile(kept, 0.95),
        autocorrelation=max(-1.0, min(1.0, centre.autocorrelation)),
        spike_share=fmean(kept) / middle - 1.0,
    )


def is_cut_short(result: BlockResult) -> bool:
    """Whether the script's end left too little of the block: fewer than two periods for each batch."""
    return result.script_ended and result.steps < 2 * _MOST_BATCHES * max(1, result.period)
