"""What each look of a verdict may spend of the error that all looks of all its budgets share."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np

ALPHA = 0.05
"""Two-sided error of all looks of all budgets together: 2.5 % of changes advised where there is no gain."""
FALLBACK_SHARE = 0.1
"""Share of `ALPHA` that the strategies have together which the advice falls back on where the winner is not proved; the
winner has the rest where there can be any."""
FIRST_SHARE = 0.8
"""Share of `ALPHA` that the first budget may spend; every continuation may spend half of what is left."""
FIRST_LOOK = 2
"""Launches at the first look that may decide."""
_SPENDING_POWER = 3.0
"""Look k of K has spent (k / K) to this power (Kim and DeMets 1987); 3 is close to O'Brien and Fleming's."""
_POINTS = 241
"""Grid on which levels are integrated; what is spent is met within 3 % of itself."""
_REACH = 8.0
"""Standard deviations that the grid holds on either side."""
_NORMAL = NormalDist()


def find_level(
    count: int,
    planned: int,
    *,
    forced: bool,
    ended: Sequence[int] = (),
    share: float = FIRST_SHARE,
    alpha: float = ALPHA,
) -> float:
    """Return the two-sided level of the look after `count` launches; all of a strategy's looks spend `alpha`.

    `planned` launches end this budget (those of earlier ones counted), `ended` says where each earlier one ended, also
    those in which this strategy had no launch: another one spent their part. A
    budget's looks after every launch spend by an increasing schedule (alpha spending: Lan and DeMets 1983); the last
    planned one, and one that the budget's time forces, spend what is left of its part. That time does not depend on
    the data, so nothing is lost by it. A launch beyond the plan is a continuation of its own.
    """
    earlier = tuple(e for e in ended if e < count)
    while count > planned:
        earlier, planned = (*(e for e in earlier if e < planned), planned), planned + 1
    return _find(count, planned, forced, earlier, share, alpha)


@lru_cache(maxsize=4096)
def _find(
    count: int, planned: int, forced: bool, ended: tuple[int, ...], share: float, alpha: float
) -> float:
    """The same for a look within its plan. Earlier budgets count as one look each, at their end."""
    left = [1.0, *((1.0 - share) * 0.5**i for i in range(len(ended) + 1))]
    parts = [alpha * (before - after) for before, after in pairwise(left)]
    looks: list[tuple[int, float]] = []
    begun, before = 0, 0.0
    for end, part in zip(ended, parts[:-1], strict=True):
        if end > begun and end >= FIRST_LOOK:
            before += part
            looks.append((end, before))
        begun = end
    start = (begun / planned) ** _SPENDING_POWER
    for k in range(max(begun + 1, FIRST_LOOK), count + 1):
        part = ((k / planned) ** _SPENDING_POWER - start) / (1.0 - start)
        part = 1.0 if forced and k == count else part
        looks.append((k, before + part * parts[-1]))
    return _spend(looks)


def _spend(looks: Sequence[tuple[int, float]]) -> float:
    """The two-sided level of the last of looks (launches, spent so far).

    One-sided recursive integration of the sum of normal launches that no look has stopped (Armitage, McPherson and Rowe
    1969): at each look the bound leaves outside what may be spent there.
    """
    grid = np.linspace(-_REACH, _REACH, _POINTS)
    sums, density, step, earlier, used, level = grid, np.zeros(0), 0.0, 0, 0.0, 0.0
    for count, cumulative in looks:
        scale, aim = math.sqrt(count), (cumulative - used) / 2.0
        here = grid * scale
        width = float(here[1] - here[0])
        if not density.size:
            density = np.exp(-0.5 * grid**2) / math.sqrt(2.0 * math.pi) / scale
        else:
            gap = math.sqrt(count - earlier)
            kernel = np.exp(-0.5 * ((here[:, None] - sums[None, :]) / gap) ** 2)
            density = kernel @ density * step / (gap * math.sqrt(2.0 * math.pi))
        tail = np.cumsum(density[::-1])[::-1] * width
        place = int(np.searchsorted(-tail, -aim))
        if 0 < place < len(tail):
            beyond = (tail[place - 1] - aim) / (tail[place - 1] - tail[place])
            bound = float(here[place - 1] + (beyond - 0.5) * width)
        else:
            bound = float(here[0] if place == 0 else here[-1])
        level = 2.0 * _NORMAL.cdf(-bound / scale)
        density = np.where(here <= bound, density, 0.0)
        sums, step, earlier, used = here, width, count, cumulative
    return level
