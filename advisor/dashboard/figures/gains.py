"""Gains over the baseline as an axis, in per cent: the one basis of all figures of a search."""

from collections.abc import Sequence
from dataclasses import dataclass

_ROOM = 0.12
"""Share of the points' span that is left free at both ends."""
_LEAST_SPAN = 4.0
"""Per cent; differences below it are no differences."""
TITLE = "gain over the baseline, %"


@dataclass(frozen=True)
class Gain:
    """A trial's throughput over the baseline's, and its 95 % interval; 1 is no gain."""

    ratio: float
    low: float
    high: float


def to_percent(ratio: float) -> float:
    """Return a ratio of throughputs as a gain in per cent, with the digits that a figure can show."""
    return float(f"{(ratio - 1) * 100:.5g}")


def frame_gains(gains: Sequence[Gain]) -> tuple[float, float]:
    """Return the ends of an axis that shows every gain, and of the intervals as much as leaves the gains apart.

    A rate is never below zero, so that no axis reaches further down than -100 %.
    """
    first, last = (to_percent(pick(gain.ratio for gain in gains)) for pick in (min, max))
    span = max(last - first, _LEAST_SPAN)
    lowest, highest = (
        min(to_percent(gain.low) for gain in gains),
        max(to_percent(gain.high) for gain in gains),
    )
    low = min(first, max(lowest, first - span)) - _ROOM * span
    high = max(last, min(highest, last + span)) + _ROOM * span
    return max(-100.0, low), high


def are_cut(gains: Sequence[Gain]) -> bool:
    """Whether some interval is longer than the axis of `frame_gains`."""
    low, high = frame_gains(gains)
    return any(to_percent(gain.low) < low or to_percent(gain.high) > high for gain in gains)
