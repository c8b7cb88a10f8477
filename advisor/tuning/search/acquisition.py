"""What another measurement is worth: knowledge gradient per second over measured and unmeasured strategies.

The value of measuring strategy x once more, with noise of variance v, is how much the best posterior mean is expected
to rise by it. The result moves the posterior mean of strategy i by s_i Z, Z standard normal, with

    s_i = Cov(i, x) / sqrt(Var(x) + v),        value of x = E[max_i (m_i + s_i Z)] - max_i m_i

(Frazier, Powell, Dayanik 2009; over the strategies that could be recommended, the measured ones and x itself, as in
Scott, Frazier, Powell 2011). Noise is part of it: a strategy that was measured well has nothing left to tell, two
leaders that noise holds apart have, and are measured again. The value is multiplied by the probability that the
strategy runs at all, and divided by the seconds that measuring it takes.

Several strategies for one race are chosen one after another, each as if those before it had brought what is predicted
of them ("kriging believer", Ginsbourger et al. 2010).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.belief import Belief, normal_below
from advisor.tuning.search.candidate_pool import compose_new, list_candidates, list_neighbours
from advisor.tuning.search.surrogate import LEAST_VARIANCE, Array

LEAST_IMPROVEMENT = 0.0005
"""Value of a measurement, in ln(throughput), below which it does not pay. One step's value is far less than what
several races bring, so that it is small: in simulated searches of three arms a race, 1 % noise, stopping at 0.3, 0.1,
0.05 and 0.02 % left a regret of 1.5, 0.04, 0.0 and -0.3 % after 4.1, 5.0, 5.8 and 6.7 races."""
_HARDLY = 1e-3
"""What such a strategy's rate counts, so that a cheap one never hides a dear one that pays."""
_CENTRES = 2
"""Best strategies around which candidates are drawn."""
_POLISH_FROM = 1
"""Best candidates whose neighbours are rated too."""
_LEADERS = 24
"""Measured strategies among which the best may be: those that the knowledge gradient looks at, and may repeat."""
_HOPE = 2.0
"""Standard deviations above its mean that a strategy is judged by when leaders are picked."""
_SCREENED = 48
"""Unmeasured candidates that are rated in full: those that promise most against the best measured one alone."""
_NODES = np.linspace(-5.0, 5.0, 81)
"""Where the expectation over Z is evaluated; beyond five standard deviations nothing is won."""
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()
"""The normal density there; they add up to 1."""

_LEAST_CHANCE = 0.1
"""Probability to run below which a strategy is not tried: a failure costs a launch, which its price does not hold."""

Price = Callable[[Mapping[str, Value]], float]
"""What measuring a strategy costs now, in seconds."""


@dataclass(frozen=True)
class Choice:
    """A strategy worth measuring next, and what is expected of it."""

    changes: Changes
    mean: float
    """Posterior mean of its score."""
    sd: float
    """Its standard deviation."""
    improvement: float
    """Expected rise of the best posterior mean, in ln(throughput), times the probability that the strategy runs."""
    prior: float | None
    """What the cost model alone predicts; None without one."""
    incumbent: float
    """Best posterior mean among measured strategies, the baseline included."""
    repeat: bool
    """It was measured before."""


def choose(
    belief: Belief, barred: Collection[Changes], price_s: Price, seed: int, count: int = 1
) -> list[Choice]:
    """Return the `count` strategies whose measurement is worth most per second, best first; fewer where there are.

    `barred` strategies are never chosen, nor are those that failed or are under way.
    """
    never = belief.barred.union(barred)
    leaders = list_leaders(belief)
    repeats = [i for i in leaders if belief.measured[i].changes and belief.measured[i].changes not in never]
    seen = {*never, *(s.changes for s in belief.measured)}
    order = np.argsort(-belief.points.mean, kind="stable")[:_CENTRES]
    centres = [belief.measured[i].changes for i in order if belief.measured[i].changes]
    fresh = list_candidates(belief.space, seen, centres, seed)
    field = _Field(belief, leaders, repeats, fresh, price_s)
    seen.update(fresh)
    best = [field.strategies[i] for i in field.rate()[:_POLISH_FROM]]
    wishes = [wish for changes in best for wish in list_neighbours(belief.space, changes)]
    if further := compose_new(belief.space, wishes, seen):
        field = _Field(belief, leaders, repeats, [*field.list_screened(), *further], price_s)
    chosen: list[Choice] = []
    while len(chosen) < count and (rated := field.rate()):
        chosen.append(field.describe(rated[0]))
        field.believe(rated[0])
    return chosen


def expect_improvement(mean: Array, sd: Array, incumbent: float) -> Array:
    """Return E[max(y - incumbent, 0)] of scores y that are normal with these means and deviations."""
    z = (mean - incumbent) / sd
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    improvement: Array = np.maximum((mean - incumbent) * normal_below(z) + sd * density, 0.0)
    return improvement


def expect_best(means: Array, slopes: Array) -> Array:
    """Return E[max_i (means_i + slopes_i Z)] for each row, Z standard normal."""
    best: Array = (means[:, :, None] + slopes[:, :, None] * _NODES).max(axis=1) @ _WEIGHTS
    return best


def list_leaders(belief: Belief) -> list[int]:
    """Return the measured strategies that may be the best, the baseline among them."""
    points = belief.points
    hopes = points.mean + _HOPE * np.sqrt(points.variance)
    order = [int(np.argmax(points.mean)), 0, *(int(i) for i in np.argsort(-hopes, kind="stable"))]
    return list(dict.fromkeys(order))[:_LEADERS]


class _Field:
    """The strategies that a race could measure, with the joint posterior that rating them needs.

    Choosing one conditions the posterior on its expected result: means stay, variances shrink.
    """

    def __init__(self, belief: Belief, leaders: Sequence[int], repeats: Sequence[int],
                 fresh: Sequence[Changes], price_s: Price) -> None:  # fmt: skip
        self._belief = belief
        self.strategies = [*(belief.measured[i].changes for i in repeats), *fresh]
        self._repeats = len(repeats)
        points = belief.points.take(repeats).join(belief.look_at(fresh))
        self._points, self._leaders = points, belief.points.take(leaders)
        self._means = self._leaders.mean
        """Of the strategies that may be recommended: leaders, then those chosen already."""
        self._variance = points.variance.copy()
        self._cross = belief.scores.covary(points, self._leaders)
        """Covariances of each strategy (row) with each that may be recommended (column)."""
        self._known: list[Array] = []
        """For each chosen strategy, how far one standard deviation of its result moves every strategy."""
        runs = belief.runs(points.places)
        runs[: self._repeats] = 1.0
        self._worth = runs / np.array([price_s(changes) for changes in self.strategies])
        self._runs = runs
        self._open = runs >= _LEAST_CHANCE
        self._values = np.zeros(len(self.strategies))
        self._screened: list[int] = []

    def rate(self) -> list[int]:
        """Return the strategies that are worth rating in full by the worth of a second of measuring, best first."""
        self._screened = self._screen()
        if not self._screened:
            return []
        rows = np.array(self._screened)
        moves = np.sqrt(self._variance[rows] + self._belief.next_variance)
        own = (self._variance[rows] / moves)[:, None]
        slopes = np.concatenate([self._cross[rows] / moves[:, None], own], axis=1)
        means = np.concatenate(
            [np.broadcast_to(self._means, (len(rows), len(self._means))), self._points.mean[rows, None]],
            axis=1,
        )
        values = np.maximum(expect_best(means, slopes) - self._means.max(), 0.0)
        self._values[rows] = values * self._runs[rows]
        rates = values * self._worth[rows]
        rates[self._values[rows] < LEAST_IMPROVEMENT] *= _HARDLY
        return [int(i) for i in rows[np.argsort(-rates, kind="stable")]]

    def list_screened(self) -> list[Changes]:
        """Return the unmeasured strategies that were rated in full."""
        return [self.strategies[i] for i in self._screened if i >= self._repeats]

    def describe(self, i: int) -> Choice:
        """Return the choice of a strategy that `rate` named."""
        points, belief = self._points, self._belief
        return Choice(
            changes=self.strategies[i],
            mean=float(points.mean[i]),
            sd=math.sqrt(float(points.variance[i])),
            improvement=float(self._values[i]),
            prior=float(points.trend[i]) if belief.model is not None else None,
            incumbent=belief.incumbent,
            repeat=i < self._repeats,
        )

    def believe(self, i: int) -> None:
        """Condition on the strategy's expected result, and let it be recommended."""
        points = self._points
        column = self._belief.scores.covary(points, points.take([i]))[:, 0]
        for known in self._known:
            column = column - known * known[i]
        root = math.sqrt(float(self._variance[i]) + self._belief.next_variance)
        known = column / root
        self._cross = self._cross - np.outer(known, self._cross[i] / root)
        self._cross = np.concatenate([self._cross, (column - known * known[i])[:, None]], axis=1)
        self._variance = np.maximum(self._variance - known**2, LEAST_VARIANCE)
        self._means = np.append(self._means, points.mean[i])
        self._known.append(known)
        self._open[i] = False

    def _screen(self) -> list[int]:
        """Rows that are rated in full: every repeat, and the unmeasured ones that promise most against the best alone.

        Those that cannot fit into memory are left out.
        """
        best = int(np.argmax(self._means))
        moves = np.sqrt(self._variance + self._belief.next_variance)
        spread = np.maximum(np.abs(self._variance - self._cross[:, best]) / moves, LEAST_VARIANCE)
        rough = expect_improvement(self._points.mean, spread, float(self._means[best])) * self._worth
        rows = [i for i in range(self._repeats) if self._open[i]]
        own, model = self._belief.space.context.baseline, self._belief.model
        for i in np.argsort(-rough[self._repeats :], kind="stable") + self._repeats:
            if len(rows) >= self._repeats + _SCREENED:
                break
            if self._open[i] and (
                model is None or model.fits_in_memory({**own, **self.strategies[i]}) is None
            ):
                rows.append(int(i))
        return rows
