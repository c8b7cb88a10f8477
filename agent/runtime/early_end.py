"""When timing stops before its planned length: the strategy cannot win, or its step time is known well enough."""

from __future__ import annotations

import math
import statistics
from typing import List, Optional, Sequence

from .results import choose_steps

MOST_CHECKPOINTS = 4
"""Each costs a wait for the device, a word between the ranks and one period that does not count."""
GIVE_UP_PERIODS = 8
"""Fewest periods from which a strategy is given up."""
ENOUGH_PERIODS = 12
"""Fewest periods from which the error of a block's step time is believed."""
BATCHES = 6
BOUND = 2.33
"""Of the normal distribution: one strategy in a hundred that is just fast enough is given up per checkpoint."""
LEAST_SPREAD = 0.02
RUN_SPREAD = 0.015
"""Standard deviation of ln(step time) between runs, which steps of one run cannot show."""
DEVIATION = 1.4826
"""Standard deviation over the median absolute deviation, of normal values."""
MEDIAN_COST = 1.253
"""Standard error of a median over that of a mean, of normal values."""
CORRELATION_COST = 3.0
"""Times by which the variance of a mean is larger than that of as many independent steps."""
MOST_CORRELATION = 0.8

GIVEN_UP, KNOWN, GO_ON = "given_up", "known", ""


def plan_checkpoints(
    min_steps: int, timed_steps: int, period: int, give_up_s: Optional[float], target_error: Optional[float]
) -> List[int]:
    """Counts of timed steps, whole periods, after which the ranks ask whether timing may stop; growing, at most four.

    None of them lies in the last two periods: an end that is near comes by itself.
    """
    points: List[int] = []
    if give_up_s is not None:
        points.append(GIVE_UP_PERIODS * period)
    if target_error is not None:
        points.append(max(-(-min_steps // period), ENOUGH_PERIODS) * period)
    if not points:
        return []
    points = sorted(set(points))
    left = MOST_CHECKPOINTS - len(points)
    factor = max(1.5, (timed_steps / points[-1]) ** (1.0 / (left + 1)))
    for _ in range(left):
        points.append(math.ceil(points[-1] * factor / period) * period)
    return [point for point in points if point <= timed_steps - 2 * period]


def average_periods(step_time_s: Sequence[float], flags: Sequence[int], period: int) -> List[float]:
    """Mean step time in seconds of every whole period in which nothing but training happened."""
    whole = len(step_time_s) // period * period
    kept = choose_steps(flags[:whole], period)
    return [
        statistics.fmean(step_time_s[step] for step in kept[start : start + period])
        for start in range(0, len(kept), period)
    ]


def judge_timing(
    periods_s: Sequence[float], enough: bool, give_up_s: Optional[float], target_error: Optional[float]
) -> str:
    """GIVEN_UP, KNOWN, or GO_ON. `enough` says that the fewest steps asked for were timed."""
    if give_up_s is not None and len(periods_s) >= GIVE_UP_PERIODS and bound_step_s(periods_s) > give_up_s:
        return GIVEN_UP
    if target_error is None or not enough or len(periods_s) < ENOUGH_PERIODS:
        return GO_ON
    return KNOWN if estimate_error(periods_s) <= target_error else GO_ON


def bound_step_s(periods_s: Sequence[float]) -> float:
    """Lower bound of the step time in seconds: exp(median(ln t) - 2.33 sqrt(s^2 + 0.015^2)).

    s = 1.253 max(1.4826 MAD, 0.02) sqrt(3) / sqrt(m) for m periods: the standard error of a median, allowing for
    autocorrelation. Raises ValueError for no period.
    """
    logs = [math.log(max(time_s, 1e-9)) for time_s in periods_s]
    error = MEDIAN_COST * max(_measure_spread(logs), LEAST_SPREAD) * math.sqrt(CORRELATION_COST / len(logs))
    return math.exp(statistics.median(logs) - BOUND * math.hypot(error, RUN_SPREAD))


def estimate_error(periods_s: Sequence[float]) -> float:
    """Standard error of ln(step time) from the medians of six batches; the periods' own spread bounds it from below.

    Six medians lie close together by chance now and then, and whoever looks several times stops just then: the
    standard error of a median of the periods is the least that is believed, with (1 + r) / (1 - r) times the variance
    for a lag-1 autocorrelation of r.
    """
    logs = [math.log(max(time_s, 1e-9)) for time_s in periods_s]
    starts = [round(batch * len(logs) / BATCHES) for batch in range(BATCHES)]
    medians = [statistics.median(logs[start:end]) for start, end in zip(starts, [*starts[1:], len(logs)])]
    between = statistics.stdev(medians) / math.sqrt(BATCHES)
    spread = _measure_spread(logs)
    again = min(MOST_CORRELATION, max(0.0, _correlate(logs, spread)))
    return max(between, MEDIAN_COST * spread * math.sqrt((1.0 + again) / (1.0 - again) / len(logs)))


def _correlate(logs: Sequence[float], spread: float) -> float:
    """Lag-1 autocorrelation, with values cut off at three spreads from the median: stalls come alone."""
    centre = statistics.median(logs)
    apart = [max(-3.0 * spread, min(3.0 * spread, log - centre)) for log in logs]
    total = sum(value * value for value in apart)
    return sum(apart[i] * apart[i + 1] for i in range(len(apart) - 1)) / total if total > 0 else 0.0


def _measure_spread(logs: Sequence[float]) -> float:
    centre = statistics.median(logs)
    return DEVIATION * statistics.median(abs(log - centre) for log in logs)
