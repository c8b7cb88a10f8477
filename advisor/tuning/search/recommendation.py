"""The strategy to confirm: least expected loss, the fewest knobs among equals, and how sure that is.

The expected loss of a strategy is how much slower than the truly best one it is expected to be, E[max_j y_j] - m_i,
over the joint posterior of the measured strategies. Its order is that of the posterior means; its size says how much
is left to gain by measuring on.
"""

import math
from dataclasses import dataclass

import numpy as np

from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.acquisition import list_leaders
from advisor.tuning.search.belief import Belief
from advisor.tuning.search.surrogate import Array

TIE = 0.001
"""Difference of expected losses, in ln(throughput), within which the strategy of fewer knobs is preferred: a tenth of
a per cent is less than anybody would change a knob for."""
_DRAWS = 2048
"""Joint draws of the leaders' scores, half of them the others' mirror images: probabilities are within 1 %."""
_SEED = 8
"""Of the draws, always the same: the same belief gives the same recommendation."""


@dataclass(frozen=True)
class Leader:
    """A measured strategy that may be the best, and what is believed of it."""

    changes: Changes
    """Empty for the baseline."""
    mean: float
    """Posterior mean of ln(throughput / baseline's)."""
    sd: float
    """Its standard deviation."""
    best: float
    """Probability that it is the best of the measured strategies."""
    loss: float
    """Expected loss, in ln(throughput), of taking it instead of the truly best measured one."""
    measurements: int
    """How often it was measured."""


@dataclass(frozen=True)
class Recommendation:
    """The strategy to confirm, and how sure the search is of it."""

    chosen: Leader
    leaders: tuple[Leader, ...]
    """Every measured strategy that may be the best, the least expected loss first; the baseline is among them."""

    @property
    def changes(self) -> Changes:
        """The chosen strategy's changes; empty when nothing measured is expected to beat the baseline."""
        return self.chosen.changes


def recommend(belief: Belief) -> Recommendation:
    """Return the measured strategy of least expected loss; of those within TIE the one that changes fewest knobs."""
    rows = list_leaders(belief)
    points = belief.points.take(rows)
    draws = _draw(points.mean, belief.scores.covary(points, points))
    best = np.bincount(np.argmax(draws, axis=1), minlength=len(rows)) / len(draws)
    top = max(float(draws.max(axis=1).mean()), float(points.mean.max()))
    leaders = [
        Leader(
            changes=belief.measured[row].changes,
            mean=float(points.mean[i]),
            sd=math.sqrt(float(points.variance[i])),
            best=float(best[i]),
            loss=top - float(points.mean[i]),
            measurements=belief.measured[row].count,
        )
        for i, row in enumerate(rows)
    ]
    leaders.sort(key=lambda leader: (leader.loss, len(leader.changes)))
    equals = [leader for leader in leaders if leader.loss <= leaders[0].loss + TIE]
    return Recommendation(min(equals, key=lambda leader: len(leader.changes)), tuple(leaders))


def _draw(mean: Array, covariance: Array) -> Array:
    """Return joint draws, one a row; a covariance that rounding left indefinite is mended."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(_SEED).standard_normal((_DRAWS // 2, len(mean)))
    drawn: Array = mean + np.concatenate([normal, -normal]) @ root.T
    return drawn
