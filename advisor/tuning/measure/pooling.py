"""What launches say together of a ratio they share: a mixture of normal distributions, and its tails and intervals.

Launches differ by what their races could not average out and by luck of the launch, whose size is unknown: both are
integrated out. Why not moments and Student's t: docs/decisions/0011.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

LUCK = 0.0065
"""Expected luck of a strategy in one launch, standard deviation of its ln ratio: 0.65 %. Chosen by simulation: smaller
ones advise a change in more than 2.5 % of A/A jobs whose launches differ by 1 %."""
LUCK_PER_GAIN = 0.05
"""The same for large gains, per unit of ln ratio: a threefold speed differs by 5.5 % from launch to launch."""
_LUCK_FREEDOM = 2.0
"""Weight of that expectation, as degrees of freedom: small, so that two launches that differ by 3 % are believed."""
_LUCK_POINTS = 24
"""Points of the grid over the luck of launches; twice as many move no interval's end by 1 % of its width."""
_FACTOR_POINTS = 7
"""Points of the grid over the factor by which all races' squared errors may be wrong."""
_SHRINK_FREEDOM = 4.0
"""Weight, as degrees of freedom, of what the other races say of one race's error."""
_LEAST_ERROR = 1e-5
"""Standard error that no race falls short of: 0.001 %, so that constant step times can be divided by."""
_NEWTON_STEPS = 30
"""Steps at most of the search for an interval's end; five are usual."""
_CLOSE = 1e-6
"""Move, in standard errors, below which that search ends."""
_NORMAL = NormalDist()

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """What is believed of the ratio that launches share."""

    weights: _Array
    """Of the mixture's parts; together 1."""
    means: _Array
    spreads: _Array
    """Standard deviations of the parts."""

    @property
    def mean(self) -> float:
        """The expected ln ratio."""
        return float(self.weights @ self.means)

    @property
    def spread(self) -> float:
        """The standard error of the mean: the root of its expected variance."""
        return math.sqrt(float(self.weights @ self.spreads**2))

    def probability_below(self, value: float) -> float:
        """Return the probability that the ln ratio is below a value."""
        return float(self.weights @ _integrate_normal((value - self.means) / self.spreads))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the ends that leave half of the level outside on either side (Newton's method on the log tail)."""
        aim, sides = math.log(level / 2.0), np.array([[-1.0], [1.0]])
        ends = self.mean + sides * self.spread * _NORMAL.inv_cdf(1.0 - level / 2.0)
        for _ in range(_NEWTON_STEPS):
            z = sides * (self.means - ends) / self.spreads
            tails = _integrate_normal(z) @ self.weights
            densities = (np.exp(-0.5 * z * z) / self.spreads) @ self.weights / math.sqrt(2.0 * math.pi)
            move = sides * ((np.log(tails) - aim) * tails / densities)[:, None]
            ends = ends + move
            if float(np.abs(move).max()) < _CLOSE * self.spread:
                break
        return float(ends[0, 0]), float(ends[1, 0])


def pool_launches(
    means: Sequence[float],
    errors: Sequence[float],
    freedoms: Sequence[float],
    cycles: Sequence[int],
    luck: float = LUCK,
) -> Pooled:
    """Return what launches say of the ln ratio they share; one figure of each list for every launch, one at least.

    A launch's ln ratio is normal around the shared one with variance luck² + error². The ratio has a flat prior, the
    squared luck of launches a scaled inverse chi-square one around `luck`. All squared errors may be wrong by one
    common factor, as far as their degrees of freedom leave open. Both are integrated out on a grid (Gelman et al. 2013,
    Bayesian Data Analysis, section 5.4). Before that a race's error is drawn a little towards what the others say of
    the error of a cycle: an error small by luck would get the weight of all.
    """
    y = np.array(means, dtype=np.float64)
    freedom = np.maximum(np.array(freedoms, dtype=np.float64), 1.0)
    length = np.maximum(np.array(cycles, dtype=np.float64), 1.0)
    square = np.maximum(np.array(errors, dtype=np.float64), _LEAST_ERROR) ** 2 * length
    shared = float(freedom @ square / freedom.sum())
    square = (freedom * square + _SHRINK_FREEDOM * shared) / (freedom + _SHRINK_FREEDOM) / length

    expected = math.hypot(luck, LUCK_PER_GAIN * float(np.median(y)))
    widest = max(10.0 * expected, 4.0 * float(np.ptp(y)))
    luck_square = np.exp(np.linspace(2.0 * math.log(expected / 4.0), 2.0 * math.log(widest), _LUCK_POINTS))
    prior = -0.5 * _LUCK_FREEDOM * (np.log(luck_square) + expected**2 / luck_square)
    known = float(freedom.sum())
    reach = 3.5 * math.sqrt(2.0 / known)
    factor = np.exp(np.linspace(-reach, reach, _FACTOR_POINTS))
    doubt = -0.5 * known * (np.log(factor) + 1.0 / factor)

    variance = luck_square[:, None, None] + factor[None, :, None] * square
    precision = 1.0 / variance
    total = precision.sum(axis=2)
    centre = (precision * y).sum(axis=2) / total
    misfit = (precision * (y - centre[:, :, None]) ** 2).sum(axis=2)
    log_weight = prior[:, None] + doubt - 0.5 * (np.log(variance).sum(axis=2) + np.log(total) + misfit)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    return Pooled(weight.ravel(), centre.ravel(), 1.0 / np.sqrt(total.ravel()))


def _integrate_normal(z: _Array) -> _Array:
    """The standard normal distribution to a relative 1.2e-7 (Press et al. 1992, Numerical Recipes, section 6.2)."""
    x = np.abs(z) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * x)
    series = np.full_like(t, 0.17087277)
    for factor in (
        -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223,
    ):  # fmt: skip
        series = factor + t * series
    tail = 0.5 * t * np.exp(-x * x + series)
    result: _Array = np.where(z > 0.0, 1.0 - tail, tail)
    return result
