"""The surrogate's hyper-parameters: the most probable scales, length and interaction, by coordinate ascent.

Each coordinate is a factor on the variances of one knob or of one group of knobs, so that the covariance for all its
values is the present one plus multiples of one matrix: a few small Cholesky factorisations at once (numpy's batches),
whatever the number of knobs.
"""

import math
from collections.abc import Sequence

import numpy as np

from advisor.tuning.search.surrogate import (
    BETA_MEAN,
    LENGTHS,
    Array,
    Axis,
    Data,
    Settings,
    Surrogate,
    join,
)

MOST_FITTED = 32
"""Observations that the hyper-parameters are fitted to at most, the first ones of the data: more tell little about
some thirty factors that have priors, and the work grows with the cube."""
_USUAL_LENGTH = 1
"""Which of LENGTHS the prior's mode is."""
_INTERACTIONS = (0.25, 0.5, 1.0)
"""Values of `interaction` that are tried; the second is the prior's mode, one logarithm its deviation."""
_LEVELS = (0.12, 0.25, 0.5, 1.0, 2.0)
"""Factors that the scales of a group of knobs are tried with."""
_STRETCHES = (0.3, 0.55, 1.0, 1.8, 3.2)
"""Factors that one knob's scale is tried with."""
_SPREAD = 0.8
"""Prior standard deviation of the logarithm of either factor."""
_PASSES = 2
"""Passes over all coordinates at most."""
_SETTLED = 0.2
"""The ascent ends when a pass over all settings gains less log posterior than this."""


def fit(axes: Sequence[Axis], data: Data, beta_sd: float) -> Surrogate:
    """Return the process that fits the data best; `beta_sd` is the doubt about the cost model's factor.

    Deterministic. Raises numpy.linalg.LinAlgError when the covariance is singular.
    """
    settings = find_settings(axes, data.take(range(min(MOST_FITTED, len(data.scores)))), beta_sd)
    return Surrogate(tuple(axes), data, settings, beta_sd)


def find_settings(axes: Sequence[Axis], data: Data, beta_sd: float) -> Settings:
    """Return the most probable settings given the data, as far as the ascent finds them.

    The factor of a knob that was never varied stays at 1: nothing was seen of it.
    """
    ascent = _Ascent(axes, data, beta_sd)
    varied = [j for j in range(len(axes)) if np.ptp(data.places[:, j]) > 0]
    groups = sorted({axes[j].group for j in varied})
    for _ in range(_PASSES):
        before = ascent.top
        for group in groups:
            ascent.scale([j for j, axis in enumerate(axes) if axis.group == group], group)
        ascent.reshape()
        for j in varied:
            ascent.scale([j], None)
        if ascent.top - before < _SETTLED:
            break
    return ascent.settings


class _Ascent:
    """The best settings so far, and the sums that changing one of them starts from."""

    def __init__(self, axes: Sequence[Axis], data: Data, beta_sd: float) -> None:
        self._axes = axes
        self._groups = sorted({axis.group for axis in axes})
        self._stretches, self._levels = [1.0] * len(axes), dict.fromkeys(self._groups, 1.0)
        self._length, self._interaction = _USUAL_LENGTH, _INTERACTIONS[1]
        self._squares = np.square(np.array([axis.scale for axis in axes]))
        places = data.places
        self._stacked = [
            np.stack([axis.correlate(at)[places[:, j]][:, places[:, j]] for j, axis in enumerate(axes)])
            for at in LENGTHS
        ]
        self._base = np.outer(data.trend, data.trend) * beta_sd**2 + np.diag(data.noise)
        self._rest = data.scores - BETA_MEAN * data.trend
        # Larger than rest' C^-1 rest can be, because C is at least the noise.
        self._corner = 2.0 * float(self._rest @ self._rest) / float(data.noise.min()) + 1.0
        self._first, self._second = self._add(self._length)
        self.top = -math.inf
        """Log posterior of the best settings so far, but for a constant."""

    @property
    def settings(self) -> Settings:
        """The best settings so far."""
        levels = tuple((group, self._levels[group]) for group in self._groups)
        return Settings(tuple(self._stretches), levels, self._length, self._interaction)

    def scale(self, knobs: Sequence[int], group: str | None) -> None:
        """Take the best factor for the variances of these knobs: a group's level, or one knob's own stretch."""
        factors = _STRETCHES if group is None else _LEVELS
        now = self._stretches[knobs[0]] if group is None else self._levels[group]
        ratios = np.square(np.array(factors) / now)
        own = self._squares[knobs]
        kernels = self._stacked[self._length][knobs] * own[:, None, None]
        first, second = kernels.sum(axis=0), np.square(kernels).sum(axis=0)
        changed_first = self._first + (ratios - 1.0)[:, None, None] * first
        changed_second = self._second + (ratios**2 - 1.0)[:, None, None] * second
        totals = self._squares.sum() + (ratios - 1.0) * own.sum()
        doubts = 0.5 * np.square(np.log(factors) / _SPREAD) - 0.5 * (math.log(now) / _SPREAD) ** 2
        values = (
            self._weigh(changed_first, changed_second, totals, self._interaction) - doubts - self._doubt()
        )
        best = int(np.argmax(values))
        if values[best] > self.top:
            self.top = float(values[best])
            self._first, self._second = changed_first[best], changed_second[best]
            self._squares[knobs] = own * ratios[best]
            if group is None:
                self._stretches[knobs[0]] = factors[best]
            else:
                self._levels[group] = factors[best]

    def reshape(self) -> None:
        """Take the best length, and then the best interaction."""
        for length in range(len(LENGTHS)):
            first, second = self._add(length)
            self._try(first, second, length, self._interaction)
        for interaction in _INTERACTIONS:
            self._try(self._first, self._second, self._length, interaction)

    def _try(self, first: Array, second: Array, length: int, interaction: float) -> None:
        total = np.array([self._squares.sum()])
        value = self._weigh(first[None], second[None], total, interaction)[0] - self._doubt(
            length, interaction
        )
        if value > self.top:
            self.top, self._length, self._interaction = float(value), length, interaction
            self._first, self._second = first, second

    def _add(self, length: int) -> tuple[Array, Array]:
        """Sum of all knobs' kernels, and of their squares."""
        kernels = self._stacked[length] * self._squares[:, None, None]
        return kernels.sum(axis=0), np.square(kernels).sum(axis=0)

    def _weigh(self, first: Array, second: Array, totals: Array, interaction: float) -> Array:
        """Log likelihood for each of several sums.

        The last row of the Cholesky factor of [[C, y], [y', corner]] is L^-1 y: one batch of factorisations does all.
        """
        count = len(self._rest)
        wide = np.empty((len(first), count + 1, count + 1))
        wide[:, :count, :count] = join(first, second, totals[:, None, None], interaction) + self._base
        wide[:, count, :count] = wide[:, :count, count] = self._rest
        wide[:, count, count] = self._corner
        root = np.linalg.cholesky(wide)
        half = root[:, count, :count]
        diagonal = np.diagonal(root[:, :count, :count], axis1=1, axis2=2)
        likelihood: Array = -0.5 * np.square(half).sum(axis=1) - np.log(diagonal).sum(axis=1)
        return likelihood

    def _doubt(self, length: int | None = None, interaction: float | None = None) -> float:
        """What the priors take off the present settings, with another length or interaction."""
        length = self._length if length is None else length
        interaction = self._interaction if interaction is None else interaction
        factors = (*self._levels.values(), *self._stretches)
        doubt = (length - _USUAL_LENGTH) ** 2 / 2.0 + math.log(interaction / _INTERACTIONS[1]) ** 2 / 2.0
        return doubt + 0.5 * sum((math.log(f) / _SPREAD) ** 2 for f in factors)
