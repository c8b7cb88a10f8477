"""Moods: a launch that is slow or fast for its whole life, because of where its threads or its memory came to lie."""

from collections.abc import Sequence
from itertools import pairwise

_LEAST_GAP = 0.1
"""Gap between two moods, in ln(rate), from which they are told: 10 %. Machines drift by less between launches."""
_APART = 2.0
"""Times by which that gap exceeds what launches of one mood differ by: otherwise they are one wide crowd."""
_LEAST_LAUNCHES = 4
"""Launches of a verdict that nothing is decided before, where launches have moods."""


def find_gap(log_rates: Sequence[float]) -> float | None:
    """Return the ln(rate) that parts slow launches from fast ones; None where they are of one mood.

    The largest gap between neighbours parts them, where it is 10 % or more and twice what either side spans.
    """
    ordered = sorted(log_rates)
    gaps = [(high - low, place) for place, (low, high) in enumerate(pairwise(ordered))]
    gap, place = max(gaps, default=(0.0, 0))
    if gap < _LEAST_GAP or gap < _APART * max(ordered[place] - ordered[0], ordered[-1] - ordered[place + 1]):
        return None
    return ordered[place] + gap / 2.0


def have_shown_moods(seen: Sequence[float], others: Sequence[float] = ()) -> bool:
    """Whether launches of a verdict may decide: they have no moods, or are four of both moods.

    `seen` are their ln(rate), `others` those of the job's other launches, which may have shown a mood first.
    """
    gap = find_gap([*others, *seen])
    slow = sum(rate < gap for rate in seen) if gap is not None else 0
    return gap is None or (len(seen) >= _LEAST_LAUNCHES and 0 < slow < len(seen))
