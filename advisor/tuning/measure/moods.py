"""Moods: the levels between which a rate jumps and stays for a while, within launches as well as between them.

Rates over time -> stretches of one level (change points) -> the border between slow and fast ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

_LEAST_GAP = 0.2
"""Gap between two moods, in ln(rate), from which they are told: 22 %. Machines that others use too drift by less."""
_APART = 2.0
"""Times by which that gap exceeds what either mood spans: otherwise they are one wide crowd."""
_PLAIN_GAP = math.log(1.5)
"""Gap that parts two moods however wide they are: with nothing between them, one is half as fast again."""
_LEAST_SHARE = 0.05
"""Share of the time from which a level is a mood, and no mishap."""
_MOST_BETWEEN = 0.15
"""Share of the time that may lie between two moods: stretches in which a short mood began or ended."""
_LEAST_NOISE = 0.02
"""Standard deviation of ln(rate) from one pace to the next that is always allowed for: 2 %."""
_PER_CHANGE = 3.0
"""What a change point costs, in squared standard deviations times ln(paces): Schwarz's criterion for its place and its
level (Yao 1988), and half as much again for noise that is not independent."""
_SHORTEST = 3
"""Paces of a stretch at least: one slow step does not make a mood."""

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pace:
    """How fast a strategy was for a moment: in one cycle of a race, or in a few."""

    seconds: float
    """Wall time of the moment, the other arms' turns included."""
    log_rate: float
    """ln(samples per second)."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive paces of one launch between two change points."""

    first: int
    """Place of its first pace."""
    count: int
    seconds: float
    level: float
    """Median ln(rate) of its paces: those in which it begins or ends lie between two levels."""
    log_rate: float
    """ln of the mean rate over its time."""


def cut_stretches(paces: Sequence[Pace]) -> tuple[Stretch, ...]:
    """Return the stretches of one launch in order; every pace is in one. Without paces there is none.

    The cut with the least sum of squares about each stretch's mean and a penalty for each change, found exactly by
    optimal partitioning (Jackson et al. 2005, IEEE Signal Processing Letters 12). The noise comes from the differences
    of neighbours, which know nothing of levels; single outliers are taken off by running medians of three first.
    """
    if not paces:
        return ()
    found = np.array([pace.log_rate for pace in paces])
    smooth = found.copy()
    if len(found) > 2:
        smooth[1:-1] = np.median([found[:-2], found[1:-1], found[2:]], axis=0)
    noise = max(_LEAST_NOISE, float(np.median(np.abs(np.diff(found)))) / 0.954 if len(found) > 2 else 0.0)
    ends = _partition(smooth, _PER_CHANGE * noise**2 * math.log(max(2, len(found))))
    seconds = np.array([pace.seconds for pace in paces])
    samples = seconds * np.exp(found)
    return tuple(
        Stretch(
            first=first,
            count=end - first,
            seconds=float(seconds[first:end].sum()),
            level=float(np.median(found[first:end])),
            log_rate=math.log(float(samples[first:end].sum() / seconds[first:end].sum())),
        )
        for first, end in pairwise([0, *ends])
    )


def _partition(values: _Array, penalty: float) -> list[int]:
    """Where the stretches of the cheapest cut end."""
    count = len(values)
    sums, squares = np.append(0.0, np.cumsum(values)), np.append(0.0, np.cumsum(values**2))
    least, before = np.full(count + 1, math.inf), np.zeros(count + 1, dtype=np.int64)
    least[0] = -penalty
    for end in range(min(_SHORTEST, count), count + 1):
        starts = np.arange(0, max(1, end - _SHORTEST + 1))
        sizes = end - starts
        spread = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / sizes
        costs = least[starts] + spread + penalty
        place = int(np.argmin(costs))
        least[end], before[end] = costs[place], starts[place]
    ends, end = [], count
    while end > 0:
        ends.append(end)
        end = int(before[end])
    return ends[::-1]


def find_border(stretches: Sequence[Stretch]) -> float | None:
    """Return the ln(rate) that parts slow stretches from fast ones, of one launch or of several; None without moods.

    The widest range of levels in which less than 15 % of the time was spent parts them, where each side took a
    twentieth or more, and where it is 22 % or more and twice what either side spans, or half as fast again whatever
    they span. Levels are medians: where long steps leave a stretch of the fast side no faster over its time than one of
    the slow side, its few slow steps are what it suffers from, and not a mood.
    """
    ordered = sorted(stretches, key=lambda stretch: stretch.level)
    levels = [stretch.level for stretch in ordered]
    until = list(accumulate((stretch.seconds for stretch in ordered), initial=0.0))
    least = _LEAST_SHARE * until[-1]
    lowest = next((level for level, below in zip(levels, until[1:], strict=True) if below >= least), 0.0)
    highest = next((levels[i] for i in reversed(range(len(levels))) if until[-1] - until[i] >= least), 0.0)
    held = [stretch for stretch in stretches if stretch.seconds >= least]
    best, border = _LEAST_GAP, None
    for low in range(len(levels)):
        if until[low + 1] < least:
            continue
        for high in range(low + 1, len(levels)):
            if until[high] - until[low + 1] >= _MOST_BETWEEN * until[-1] or until[-1] - until[high] < least:
                break
            gap = levels[high] - levels[low]
            spans = levels[low] - lowest, highest - levels[high]
            between = (levels[low] + levels[high]) / 2.0
            is_apart = gap >= _PLAIN_GAP or gap >= _APART * max(spans)
            if gap > best and is_apart and _part_rates(held, between):
                best, border = gap, between
    return border


def _part_rates(stretches: Sequence[Stretch], border: float) -> bool:
    """Whether the mean rates of the stretches above a level are above all those of the stretches below it."""
    slow = [stretch.log_rate for stretch in stretches if stretch.level < border]
    fast = [stretch.log_rate for stretch in stretches if stretch.level >= border]
    return not slow or not fast or max(slow) < min(fast)
