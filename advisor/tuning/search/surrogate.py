"""A Gaussian process over strategies: what measured strategies say about the ones that were not measured.

The model of a score y = ln(throughput / baseline's) of a strategy x, which is one place on the axis of each knob:

    y = beta * g(x) + sum_j f_j(x_j) + sum_{i<j} f_ij(x_i, x_j) + noise,      beta ~ N(BETA_MEAN, beta_sd^2)

* g is the cost model's predicted gain (zero without one). How far it is to be believed is learnt with the rest.
* f_j is the knob's own effect: a Matérn-5/2 process over the places of an ordered knob (on the scale on which its
  values are spread), one level a value where order means nothing. Additive kernels: Duvenaud, Nickisch, Rasmussen 2011
  (arXiv 1112.4394); a strategy changes ten knobs, and five measurements can only tell their effects one by one.
* f_ij is what two knobs do together. Its variance is `interaction`^2 * s_i^2 * s_j^2 / sum s^2: strong knobs interact,
  weak ones do not, and more knobs do not make the whole more uncertain.
* The noise of each score is known: its variance is given.

The scales s_j (what is expected of the knob, times a factor of its own, times one of its part of a step), the length
and `interaction` are the most probable ones given priors (MAP), found by coordinate ascent over few values
(`surrogate_fit.py`), so that five observations are enough and a fit is a bounded amount of work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.int64]
"""Strategies as rows of places, one column a knob."""

BETA_MEAN = 0.8
"""Prior mean of the cost model's factor: predicted gains are usually a little too large (docs/cost-model.md)."""
LENGTHS = (0.3, 0.6, 1.2)
"""Lengths of the Matérn kernel, in ranges of an axis."""
LEAST_VARIANCE = 1e-12
"""What a posterior variance is at least, so that rounding never makes it negative."""


@dataclass(frozen=True)
class Axis:
    """One knob as the process sees it."""

    coordinates: tuple[float, ...]
    """Where each value lies, from 0 to 1; only the number counts where order means nothing."""
    ordered: bool
    scale: float
    """How much the knob is expected to change ln(throughput): a standard deviation."""
    group: str = ""
    """Knobs that act on the same part of a step: how much there is to win in it is learnt from all of them."""

    def correlate(self, length: float) -> Array:
        """Return the correlation between the effects of each two values."""
        if not self.ordered:
            return np.eye(len(self.coordinates))
        at = np.array(self.coordinates)
        distance = np.abs(at[:, None] - at[None, :]) * (math.sqrt(5.0) / length)
        table: Array = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
        return table


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters."""

    stretches: tuple[float, ...]
    """Each knob's own factor on its expected scale."""
    levels: tuple[tuple[str, float], ...]
    """The factor that the knobs of a group share: how much there is to win or lose in that part of a step."""
    length: int
    """Which of LENGTHS."""
    interaction: float

    def square_scales(self, axes: Sequence[Axis]) -> Array:
        """Return the variance of each knob's effect."""
        levels = dict(self.levels)
        scales = [levels[a.group] * f * a.scale for f, a in zip(self.stretches, axes, strict=True)]
        return np.square(np.array(scales, dtype=np.float64))


@dataclass(frozen=True)
class Data:
    """Observations as the process sees them: n strategies, their scores and what is known of those."""

    places: Places
    scores: Array
    noise: Array
    """Variance of each score."""
    trend: Array
    """The cost model's gains for the same strategies."""

    def take(self, rows: Sequence[int]) -> "Data":
        """Return some of the observations."""
        return Data(self.places[rows], self.scores[rows], self.noise[rows], self.trend[rows])


@dataclass(frozen=True)
class Points:
    """Strategies with what the process believes of their scores."""

    places: Places
    trend: Array
    mean: Array
    variance: Array
    half: Array
    """The root's inverse times their covariance with the observations: what was learnt about each, a column each."""

    def take(self, rows: Sequence[int]) -> "Points":
        """Return some of the strategies."""
        rows = list(rows)
        return Points(
            self.places[rows], self.trend[rows], self.mean[rows], self.variance[rows], self.half[:, rows]
        )

    def join(self, others: "Points") -> "Points":
        """Return these strategies and others, as one process sees them."""
        return Points(
            np.concatenate([self.places, others.places]),
            np.concatenate([self.trend, others.trend]),
            np.concatenate([self.mean, others.mean]),
            np.concatenate([self.variance, others.variance]),
            np.concatenate([self.half, others.half], axis=1),
        )


@dataclass(frozen=True)
class Surrogate:
    """A process that has seen observations: predicts the score of any strategy, with its uncertainty."""

    axes: tuple[Axis, ...]
    data: Data
    settings: Settings
    beta_sd: float

    def predict(self, places: Places, trend: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the scores of `places`, the cost model's gains being `trend`."""
        points = self.look_at(places, trend)
        return points.mean, np.sqrt(points.variance)

    def look_at(self, places: Places, trend: Array) -> Points:
        """Return the strategies with their posterior, ready for `covary`."""
        half = self._inverse_root @ self._covary_before(self.data.places, self.data.trend, places, trend)
        mean = BETA_MEAN * trend + half.T @ self._residues
        own = self._own_variance + self.beta_sd**2 * trend**2
        variance = np.maximum(own - np.einsum("np,np->p", half, half), LEAST_VARIANCE)
        return Points(places, trend, mean, variance, half)

    def covary(self, some: Points, others: Points) -> Array:
        """Return the posterior covariances between two lots of strategies."""
        before = self._covary_before(some.places, some.trend, others.places, others.trend)
        covariance: Array = before - some.half.T @ others.half
        return covariance

    @cached_property
    def _tables(self) -> list[Array]:
        """Covariance between the effects of each two values, a table for each knob."""
        squares = self.settings.square_scales(self.axes)
        length = LENGTHS[self.settings.length]
        return [axis.correlate(length) * square for axis, square in zip(self.axes, squares, strict=True)]

    @cached_property
    def _own_variance(self) -> float:
        """Variance of one score before anything is observed, without the cost model's part."""
        squares = self.settings.square_scales(self.axes)
        return float(join(squares.sum(), np.square(squares).sum(), squares.sum(), self.settings.interaction))

    @cached_property
    def _inverse_root(self) -> Array:
        """Inverse of the lower Cholesky factor of the observations' covariance."""
        data = self.data
        prior = self._covary_before(data.places, data.trend, data.places, data.trend)
        return np.asarray(np.linalg.inv(np.linalg.cholesky(prior + np.diag(data.noise))), dtype=np.float64)

    @cached_property
    def _residues(self) -> Array:
        """The scores less their prior mean, whitened."""
        residues: Array = self._inverse_root @ (self.data.scores - BETA_MEAN * self.data.trend)
        return residues

    def _covary_before(self, places: Places, trend: Array, others: Places, other_trend: Array) -> Array:
        """Prior covariance between the scores of `places` and of `others`, without noise."""
        first = np.zeros((len(places), len(others)))
        second = np.zeros_like(first)
        total = 0.0
        for j, table in enumerate(self._tables):
            part = table[places[:, j]][:, others[:, j]]
            first += part
            second += part * part
            total += table[0, 0]
        joined: Array = join(first, second, total, self.settings.interaction)
        joined += np.outer(trend, other_trend) * self.beta_sd**2
        return joined


def join(first: Array, second: Array, total: Array | float, interaction: Array | float) -> Array:
    """Effects alone and in pairs, from the sum of the knobs' kernels and the sum of their squares (Newton-Girard)."""
    joined: Array = first + interaction**2 * (first * first - second) / (2.0 * total)
    return joined
