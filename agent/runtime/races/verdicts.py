"""What the step times of a race's arms say: who is too slow, and whether enough is known. Pure functions."""

from __future__ import annotations

import math
import statistics
from typing import List, Optional, Sequence

LIMIT_OF_FIRST = 20.0
"""Times the fastest arm's step: more than new buckets ever cost, so the very first step gives such an arm up."""
MARGINS = (4.0, 3.0)
"""Times the fastest arm's step that the best of one, of two or more steps after the first must exceed. Arms enter at
different moments, and a machine's slow moment lasts for seconds: milder cases are for the cycles to tell."""
LEAST_LOOK_S = 0.25
"""Seconds that the steps of a new arm must have lasted before they give it up: a hiccup of the machine is many times a
step of a millisecond, and further such steps cost nothing."""
CAP = 1.5
"""Steps count with at most so many times the median of their arm: a stall of another program is no strategy's."""
BOUND = 2.33
"""Of the normal distribution: one arm in a hundred that is just fast enough is given up per look."""
LEAST_CYCLES = 4
"""Fewest cycles whose spread is believed."""
LEAST_SPREAD = 0.02
"""Of ln(step time) within an arm; steps that agree better by chance prove nothing."""
MOVED = 0.01
"""Of ln(step time): an arm that short turns make so much faster or slower than a long one does is not raced in them."""
SURELY_MOVED = 3.0
"""Standard errors: it is asked in every race, and a race that is broken off is lost."""
MOODS_SPREAD = 0.1
"""Standard deviation of ln(ratio) from turn to turn from which an arm has moods: half of their least gap."""
CORRELATION_COST = 3.0
"""Times by which the variance of a mean is larger than that of as many independent steps."""


def is_hopeless(step_s: Sequence[float], fastest_s: float, ratio: float, starts_slowly: bool) -> bool:
    """Whether the first steps of a new arm show that it takes more than `ratio` times the fastest arm's step.

    The first step pays for the switch: new buckets, a compilation. Of the later ones the best counts.
    """
    if fastest_s <= 0 or math.fsum(step_s) < LEAST_LOOK_S:
        return False
    later = step_s[1:]
    if starts_slowly:
        return len(later) > 0 and later[-1] > max(MARGINS[0], ratio) * fastest_s
    if not later:
        return step_s[0] > max(LIMIT_OF_FIRST, ratio) * fastest_s
    return min(later) > max(MARGINS[min(len(later), len(MARGINS)) - 1], ratio) * fastest_s


def cap_steps(step_s: Sequence[float]) -> List[float]:
    """The steps, none longer than 1.5 times their median."""
    limit = CAP * statistics.median(step_s) if step_s else 0.0
    return [min(time_s, limit) for time_s in step_s]


def is_surely_slower(step_s: Sequence[float], fastest_s: Sequence[float], ratio: float) -> bool:
    """Whether the mean of an arm's capped steps is more than `ratio` times the fastest arm's, errors allowed for."""
    if len(step_s) < 2 or len(fastest_s) < 2:
        return False
    logs = math.log(statistics.fmean(step_s) / statistics.fmean(fastest_s))
    error = math.hypot(_estimate_error(step_s), _estimate_error(fastest_s))
    return logs - BOUND * error > math.log(ratio)


def _estimate_error(step_s: Sequence[float]) -> float:
    spread = max(LEAST_SPREAD, statistics.stdev(step_s) / statistics.fmean(step_s))
    return spread * math.sqrt(CORRELATION_COST / len(step_s))


def estimate_error(arm_s: Sequence[Optional[float]], first_s: Sequence[Optional[float]]) -> float:
    """Standard error of ln(arm's / first arm's step time), from what both took in each cycle; inf for too few.

    The factor is the one of Student's distribution: with few cycles their spread is small now and then by chance.
    """
    pairs = [math.log(a / b) for a, b in zip(arm_s, first_s) if a and b]
    if len(pairs) < LEAST_CYCLES:
        return math.inf
    freedom = len(pairs) - 1
    return statistics.stdev(pairs) / math.sqrt(len(pairs)) * (1.0 + 1.5 / freedom)


def estimate_own_error(arm_s: Sequence[Optional[float]]) -> float:
    """The same of ln(step time) for an arm that races alone."""
    return estimate_error(arm_s, [1.0] * len(arm_s))


def is_moved(
    arm_s: Sequence[Optional[float]],
    first_s: Sequence[Optional[float]],
    arm_long_s: Sequence[float],
    first_long_s: Sequence[float],
) -> bool:
    """Whether the ratio of two arms in short turns, of which the means are given, is surely not that of a long one.

    A queue of the script's own that one arm fills and the other one eats, for example, lasts for a short turn only.
    """
    pairs = [math.log(a / b) for a, b in zip(arm_s, first_s) if a and b]
    error = estimate_error(arm_s, first_s)
    if len(arm_long_s) < 2 or len(first_long_s) < 2 or error == math.inf:
        return False
    own, other = cap_steps(arm_long_s), cap_steps(first_long_s)
    apart = statistics.fmean(pairs) - math.log(statistics.fmean(own) / statistics.fmean(other))
    error = math.hypot(error, _estimate_error(own), _estimate_error(other))
    if abs(apart) <= max(MOVED, SURELY_MOVED * error):
        return False
    # One long turn meets one mood of an arm, and short ones meet all of them: some are then as far away as it is.
    as_far = sum((pair - statistics.fmean(pairs)) * -apart >= apart * apart for pair in pairs)
    return statistics.stdev(pairs) < MOODS_SPREAD or as_far < 2
