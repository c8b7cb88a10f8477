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

LUCK_PER_GAIN = 0.05
"""What more is expected for large gains, per unit of ln ratio: a threefold speed differs by 5.5 % between launches."""
_LUCK_POINTS = 24
"""Points of the grid over the luck of launches; twice as many move no interval's end by 1 % of its width."""
_LEAST_LUCK, _MOST_LUCK = 0.001, 0.2
"""Luck of launches between which it is learned."""
_LEARNED_POINTS = 120
"""Points of that grid: steps of 4.5 %."""
_FACTOR_POINTS = 7
"""Points of the grid over the factor by which all races' squared errors may be wrong."""
_SHRINK_FREEDOM = 4.0
"""Weight, as degrees of freedom, of what the other races say of one race's error."""
_LEAST_ERROR = 1e-5
"""Standard error that no race falls short of: 0.001 %, so that constant step times can be divided by."""
_NEWTON_STEPS = 60
"""Steps at most of the search for an interval's end; six are usual."""
_CLOSE = 1e-4
"""Move, over the smallest standard deviation of a part, below which that search ends."""
_NORMAL = NormalDist()

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Luck:
    """What is believed of the luck of launches before a strategy's own are seen."""

    spread: float
    """Standard deviation of the ln ratio from launch to launch."""
    freedom: float
    """Weight of that belief, as degrees of freedom."""


UNKNOWN_LUCK = Luck(0.015, 2.0)
"""Where nothing is known of the machine: launches that agree within 1 % by chance must not be believed before a few of
them are seen (docs/results/confirmation_statistics.md)."""


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
        """The standard error of the mean."""
        return math.sqrt(float(self.weights @ (self.spreads**2 + (self.means - self.mean) ** 2)))

    def probability_below(self, value: float) -> float:
        """Return the probability that the ln ratio is below a value."""
        return float(self.weights @ _integrate_normal((value - self.means) / self.spreads))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the ends that leave half of the level outside on either side."""
        return self._find_end(level / 2.0), self._find_end(1.0 - level / 2.0)

    def _find_end(self, below: float) -> float:
        """Newton's method between the parts' own ends, which hold the mixture's; where it leaves them, by halves."""
        ends = self.means + self.spreads * _NORMAL.inv_cdf(below)
        low, high = float(ends.min()), float(ends.max())
        end = float(self.weights @ ends)
        for _ in range(_NEWTON_STEPS):
            z = (end - self.means) / self.spreads
            missing = below - float(self.weights @ _integrate_normal(z))
            low, high = (end, high) if missing > 0.0 else (low, end)
            density = float(self.weights @ (np.exp(-0.5 * z * z) / self.spreads)) / math.sqrt(2.0 * math.pi)
            moved = end + missing / density if density > 0.0 else math.inf
            if not low < moved < high:
                moved = (low + high) / 2.0
            if abs(moved - end) < _CLOSE * float(self.spreads.min()):
                return moved
            end = moved
        return end


def pool_launches(
    means: Sequence[float],
    errors: Sequence[float],
    freedoms: Sequence[float],
    cycles: Sequence[int],
    luck: Luck = UNKNOWN_LUCK,
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

    expected = math.hypot(luck.spread, LUCK_PER_GAIN * float(np.median(y)))
    widest = max(10.0 * expected, 4.0 * float(np.ptp(y)))
    luck_square = np.exp(np.linspace(2.0 * math.log(expected / 4.0), 2.0 * math.log(widest), _LUCK_POINTS))
    prior = _log_prior(luck_square, expected, luck.freedom)
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


def learn_luck(seen: Sequence[Sequence[tuple[float, float]]], most_freedom: float) -> Luck:
    """Return what the launches of other strategies say of the luck of one more.

    Each of `seen` is one strategy: its ln ratio in each launch, with the standard error of it. They say it by their
    restricted likelihood (Patterson and Thompson 1971); where they are more than `most_freedom` degrees of freedom,
    they count as so many, because scripts differ. What is believed then has the mean and the variance of the precision
    that they leave (a scaled inverse chi-square distribution).
    """
    groups = [np.array(group, dtype=np.float64) for group in seen if len(group) > 1]
    if not groups:
        return UNKNOWN_LUCK
    square = np.exp(np.linspace(2.0 * math.log(_LEAST_LUCK), 2.0 * math.log(_MOST_LUCK), _LEARNED_POINTS))
    said = np.zeros_like(square)
    for group in groups:
        precision = 1.0 / (square[:, None] + np.maximum(group[:, 1], _LEAST_ERROR) ** 2)
        total = precision.sum(axis=1)
        centre = precision @ group[:, 0] / total
        misfit = (precision * (group[:, 0] - centre[:, None]) ** 2).sum(axis=1)
        said -= 0.5 * (np.log(total) - np.log(precision).sum(axis=1) + misfit)
    said *= min(1.0, most_freedom / sum(len(group) - 1 for group in groups))
    weight = np.exp(said - said.max() + _log_prior(square, UNKNOWN_LUCK.spread, UNKNOWN_LUCK.freedom))
    weight /= weight.sum()
    mean = float(weight @ (1.0 / square))
    variance = float(weight @ (1.0 / square - mean) ** 2)
    return Luck(1.0 / math.sqrt(mean), 2.0 * mean**2 / variance)


def _log_prior(square: _Array, spread: float, freedom: float) -> _Array:
    """A scaled inverse chi-square distribution of the squared luck, on a grid of equal steps of its logarithm."""
    return -0.5 * freedom * (np.log(square) + spread**2 / square)


def mix(parts: Sequence[tuple[float, Pooled]]) -> Pooled:
    """Return what is believed where each part holds with that probability; together 1."""
    return Pooled(
        np.concatenate([chance * pooled.weights for chance, pooled in parts]),
        np.concatenate([pooled.means for _, pooled in parts]),
        np.concatenate([pooled.spreads for _, pooled in parts]),
    )


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
