"""A Gaussian process over strategies: what measured strategies say about the ones that were not measured.

The model of a score y = ln(throughput / baseline's) of a strategy x, which is one place on the axis of each knob:

    y = beta * g(x) + sum_j f_j(x_j) + sum_{i<j} f_ij(x_i, x_j) + noise,      beta ~ N(BETA_MEAN, beta_sd^2)

* g is the cost model's predicted gain (zero without one). How far it is to be believed is learnt with the rest.
* f_j is the knob's own effect: a Matérn-5/2 process over the places of an ordered knob (on the scale on which its
  values are spread), one level a value where order means nothing. Additive kernels: Duvenaud, Nickisch, Rasmussen 2011
  (arXiv 1112.4394); a strategy changes ten knobs, and five measurements can only tell their effects one by one.
* f_ij is what two knobs do together. Its variance is `interaction`^2 * s_i^2 * s_j^2 / sum s^2: strong knobs interact,
  weak ones do not, and more knobs do not make the whole more uncertain.
* The noise of each score is known: its standard error.

The scales s_j (what is expected of the knob, times a factor of its own, times one of its part of a step), the length
and `interaction` are the most probable ones given priors (MAP), found by coordinate ascent over few values, so that
five observations are enough and a fit is a bounded amount of work.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.int64]
"""Strategies as rows of places, one column a knob."""

BETA_MEAN = 0.8
_JITTER = 0.003
"""Standard deviation added to every score: what two measurements of one strategy differ by at least."""
_LENGTHS = (0.3, 0.6, 1.2)
"""Lengths of the Matérn kernel, in ranges of an axis."""
_INTERACTIONS = (0.25, 0.5, 1.0)
_LEVELS = (0.12, 0.25, 0.5, 1.0, 2.0)
"""Factors that the scales of a group of knobs are tried with."""
_STRETCHES = (0.3, 0.55, 1.0, 1.8, 3.2)
"""Factors that one knob's scale is tried with."""
_SPREAD = 0.8
"""Standard deviation of the logarithm of either factor."""
_PASSES = 2
_SETTLED = 0.05
"""The ascent ends when a pass over all settings gains less log posterior than this."""


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


@dataclass(frozen=True)
class _Settings:
    stretches: tuple[float, ...]
    """Each knob's own factor on its expected scale."""
    levels: tuple[tuple[str, float], ...]
    """The factor that the knobs of a group share: how much there is to win or lose in that part of a step."""
    length: int
    interaction: float

    def scales(self, axes: Sequence[Axis]) -> tuple[float, ...]:
        """Return the standard deviation of each knob's effect."""
        levels = dict(self.levels)
        return tuple(
            levels[axis.group] * stretch * axis.scale
            for stretch, axis in zip(self.stretches, axes, strict=True)
        )


@dataclass(frozen=True)
class Surrogate:
    """A fitted process: predicts the score of any strategy, with its uncertainty."""

    axes: tuple[Axis, ...]
    places: Places
    trend: Array
    settings: _Settings
    beta_sd: float
    noise: Array
    """Variance of each score's noise."""
    root: Array
    """Lower Cholesky factor of the observations' covariance."""
    weights: Array
    """Covariance's inverse times the scores less their prior mean."""

    def predict(self, places: Places, trend: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the scores of `places`, the cost model's gains being `trend`."""
        cross = _covariance(self.axes, self.settings, self.beta_sd, places, trend, self.places, self.trend)
        mean = BETA_MEAN * trend + cross @ self.weights
        half = np.linalg.solve(self.root, cross.T)
        squares = np.square(self.settings.scales(self.axes))
        own = _own_variance(squares, self.settings.interaction) + self.beta_sd**2 * trend**2
        return mean, np.sqrt(np.maximum(own - np.sum(half * half, axis=0), 1e-12))


def fit(
    axes: Sequence[Axis], places: Places, scores: Array, errors: Array, trend: Array, beta_sd: float
) -> Surrogate:
    """Return the process that fits `scores` (n) of `places` (n × knobs) best.

    `errors` are the scores' standard errors, `trend` the cost model's gains for the same strategies, `beta_sd` the
    doubt about the cost model's factor. Raises numpy.linalg.LinAlgError when the covariance is singular.
    """
    noise = errors**2 + _JITTER**2
    rest = scores - BETA_MEAN * trend
    stacked = [
        np.stack([_table(axis, length)[places[:, j]][:, places[:, j]] for j, axis in enumerate(axes)])
        for length in _LENGTHS
    ]
    base = np.outer(trend, trend) * beta_sd**2 + np.diag(noise)

    def value_of(settings: _Settings) -> float:
        squares = np.square(settings.scales(axes))
        parts = stacked[settings.length] * squares[:, None, None]
        joined = _join(parts.sum(axis=0), np.square(parts).sum(axis=0), squares.sum(), settings.interaction)
        root = np.linalg.cholesky(joined + base)
        half = np.linalg.solve(root, rest)
        likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(root)).sum())
        factors = (*(level for _, level in settings.levels), *settings.stretches)
        doubt = (settings.length - 1) ** 2 / 2.0 + math.log(settings.interaction / 0.5) ** 2 / 2.0
        return likelihood - 0.5 * sum((math.log(f) / _SPREAD) ** 2 for f in factors) - doubt

    groups = sorted({axis.group for axis in axes})
    best = _Settings((1.0,) * len(axes), tuple((group, 1.0) for group in groups), 1, _INTERACTIONS[1])
    top = value_of(best)
    for _ in range(_PASSES):
        before = top
        for changed in _moves(len(axes), groups):
            candidate = changed(best)
            if candidate != best and (value := value_of(candidate)) > top:
                best, top = candidate, value
        if top - before < _SETTLED:
            break
    return condition(axes, places, scores, errors, trend, beta_sd, best)


def _moves(knobs: int, groups: Sequence[str]) -> Iterator[Callable[[_Settings], _Settings]]:
    """Every change of one setting that the ascent tries, one after another."""
    for group in groups:
        for level in _LEVELS:
            yield lambda s, group=group, level=level: replace(  # type: ignore[misc]
                s, levels=tuple((g, level if g == group else old) for g, old in s.levels)
            )
    for length in range(len(_LENGTHS)):
        yield lambda s, length=length: replace(s, length=length)  # type: ignore[misc]
    for interaction in _INTERACTIONS:
        yield lambda s, interaction=interaction: replace(s, interaction=interaction)  # type: ignore[misc]
    for j in range(knobs):
        for stretch in _STRETCHES:
            yield (
                lambda s, j=j, stretch=stretch: replace(  # type: ignore[misc]
                    s, stretches=(*s.stretches[:j], stretch, *s.stretches[j + 1 :])
                )
            )


def condition(axes: Sequence[Axis], places: Places, scores: Array, errors: Array, trend: Array, beta_sd: float,
              settings: _Settings) -> Surrogate:  # fmt: skip
    """Return the process with given settings that has seen these scores."""
    noise = errors**2 + _JITTER**2
    covariance = _covariance(axes, settings, beta_sd, places, trend, places, trend) + np.diag(noise)
    root: Array = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    weights = np.linalg.solve(root.T, np.linalg.solve(root, scores - BETA_MEAN * trend))
    return Surrogate(tuple(axes), places, trend, settings, beta_sd, noise, root, weights)


def _covariance(axes: Sequence[Axis], settings: _Settings, beta_sd: float, places: Places, trend: Array,
                others: Places, other_trend: Array) -> Array:  # fmt: skip
    """Prior covariance between the scores of `places` and of `others`, without noise."""
    first = np.zeros((len(places), len(others)))
    second = np.zeros_like(first)
    squares = np.square(settings.scales(axes))
    for j, axis in enumerate(axes):
        part = (_table(axis, _LENGTHS[settings.length]) * squares[j])[places[:, j]][:, others[:, j]]
        first += part
        second += part * part
    joined = _join(first, second, float(squares.sum()), settings.interaction)
    return joined + np.outer(trend, other_trend) * beta_sd**2


def _join(first: Array, second: Array, total: float, interaction: float) -> Array:
    """Effects alone and in pairs, from the sum of the knobs' kernels and the sum of their squares (Newton-Girard)."""
    joined: Array = first + interaction**2 * (first * first - second) / (2.0 * total)
    return joined


def _own_variance(squares: Array, interaction: float) -> float:
    total = float(squares.sum())
    return total + interaction**2 * (total * total - float(np.square(squares).sum())) / (2.0 * total)


def _table(axis: Axis, length: float) -> Array:
    """Correlation between the effects of each two values of a knob."""
    if not axis.ordered:
        return np.eye(len(axis.coordinates))
    at = np.array(axis.coordinates)
    distance = np.abs(at[:, None] - at[None, :]) * (math.sqrt(5.0) / length)
    table: Array = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return table
