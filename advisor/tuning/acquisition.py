"""What the next trial is worth: expected improvement per second over the strategies that could be measured next.

Expected improvement (Mockus 1978; Jones, Schonlau, Welch 1998) of a strategy with predicted score m ± s over the
incumbent b, with z = (m - b) / s:   EI = (m - b) * Phi(z) + s * phi(z).   Measurements are noisy, so b is the best
*posterior mean* among measured strategies, never the best number seen. Strategies under way in other gangs count as if
they had brought what is predicted of them ("kriging believer", Ginsbourger et al. 2010). EI is multiplied by the
probability that the strategy runs at all, and divided by the seconds that measuring it takes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from advisor.protocol.base import Value
from advisor.tuning.candidates import Key, list_axes, list_candidates, list_neighbours, place
from advisor.tuning.composition import key_of
from advisor.tuning.space import Space
from advisor.tuning.surrogate import Array, Axis, Surrogate, condition, fit

LEAST_IMPROVEMENT = 0.003
"""Expected improvement, in ln(throughput), below which another trial does not pay."""
_HARDLY = 1e-3
"""What such a strategy's rate counts, so that a cheap one never hides a dear one that pays."""
_CENTRES = 4
_POLISH_FROM = 3
_BASELINE_ERROR = 0.002
_MOST_TREND = 3.0
_FAILS_RARELY = 0.06
"""Share of strategies that fail, before any was seen to."""
_FAILURE_ERROR = 0.1
_FAILURE_DOUBT = 0.2


class Predictor(Protocol):
    """What the search asks of a cost model."""

    @property
    def residual(self) -> float:
        """Root mean square of ln(measured / predicted step time): the model's own doubt."""

    def predict_many(self, strategies: Sequence[Mapping[str, Value]]) -> list[float]:
        """Step times of full strategies, in seconds."""

    def fits_in_memory(self, values: Mapping[str, Value]) -> str | None:
        """A sentence when the strategy cannot fit, else None."""


@dataclass(frozen=True)
class Told:
    """What one earlier trial teaches the search."""

    changes: Mapping[str, Value]
    score: float | None
    """ln(throughput / baseline's); None when the strategy itself failed, or is still being measured."""
    error: float = 0.02
    """The score's standard error."""
    pending: bool = False
    """It is being measured in another session."""
    cost_s: float | None = None
    """What it took to measure, in seconds."""


@dataclass(frozen=True)
class Choice:
    """A strategy worth measuring next, and what is expected of it."""

    changes: dict[str, Value]
    mean: float
    """Predicted score."""
    sd: float
    """Its standard deviation."""
    improvement: float
    """Expected improvement over the incumbent, in ln(throughput), times the probability that it runs."""
    prior: float | None
    """What the cost model alone predicts; None without one."""
    incumbent: float
    """Best posterior mean among measured strategies, the baseline included."""


@dataclass(frozen=True)
class Belief:
    """Everything that the measured strategies and the cost model say together."""

    space: Space
    model: Predictor | None
    scores: Surrogate
    failures: Surrogate | None
    measured: tuple[Mapping[str, Value], ...]
    """Strategies with a score; the first is the baseline, without changes."""
    means: Array
    """Their posterior means."""

    @property
    def incumbent(self) -> float:
        """The best posterior mean among measured strategies."""
        return float(self.means.max())

    def predict(self, strategies: Sequence[Mapping[str, Value]]) -> tuple[Array, Array]:
        """Return mean and standard deviation of the strategies' scores."""
        return self.scores.predict(place(self.space, strategies), _trend(self.space, self.model, strategies))

    def runs(self, strategies: Sequence[Mapping[str, Value]]) -> Array:
        """Return the probability that each strategy runs at all."""
        if self.failures is None:
            return np.ones(len(strategies))
        nothing = np.zeros(len(strategies))
        fails, doubt = self.failures.predict(place(self.space, strategies), nothing)
        return _normal_below((0.5 - _FAILS_RARELY - fails) / np.maximum(doubt, _FAILURE_DOUBT))


def learn(space: Space, told: Sequence[Told], model: Predictor | None) -> Belief:
    """Return what is believed after these trials. Deterministic; a few hundredths of a second for sixty trials."""
    axes = list_axes(space)
    seen = [t for t in told if t.score is not None]
    measured: tuple[Mapping[str, Value], ...] = ({}, *(t.changes for t in seen))
    places, trend = place(space, measured), _trend(space, model, measured)
    scores = np.array([0.0, *(t.score or 0.0 for t in seen)])
    errors = np.array([_BASELINE_ERROR, *(t.error for t in seen)])
    beta_sd = 0.0 if model is None else min(0.6, 0.15 + 2.0 * model.residual)
    surrogate = fit(axes, places, scores, errors, trend, beta_sd)
    means, _ = surrogate.predict(places, trend)
    if pending := [t.changes for t in told if t.pending]:
        surrogate = _believe(surrogate, axes, space, model, pending, scores, errors)
    failures = _learn_failures(space, axes, told)
    return Belief(space, model, surrogate, failures, measured, means)


def choose(belief: Belief, known: set[Key], price_s: Callable[[Mapping[str, Value]], float], seed: int,
           extra: Sequence[Mapping[str, Value]] = ()) -> Choice | None:  # fmt: skip
    """Return the strategy with the greatest expected improvement per second; None when all are known.

    `known` strategies are never chosen; `extra` are wishes to consider whatever the candidates' draw.
    """
    space = belief.space
    order = np.argsort(-belief.means, kind="stable")[:_CENTRES]
    centres = [belief.measured[i] for i in order if belief.measured[i]]
    pool = list_candidates(space, known, centres, seed)
    seen = set(known) | {key_of(c) for c in pool}
    pool += _compose_new(space, extra, seen)
    best = _rate(belief, pool, price_s)
    if not best:
        return None
    further = [w for choice in best[:_POLISH_FROM] for w in list_neighbours(space, choice.changes)]
    return _rate(belief, [*(c.changes for c in best), *_compose_new(space, further, seen)], price_s)[0]


def _compose_new(
    space: Space, wishes: Sequence[Mapping[str, Value]], seen: set[Key]
) -> list[dict[str, Value]]:
    found = []
    for wish in wishes:
        changes = space.composer.compose(wish)
        if changes is not None and key_of(changes) not in seen:
            seen.add(key_of(changes))
            found.append(changes)
    return found


def _rate(belief: Belief, pool: list[dict[str, Value]], price_s: Callable[[Mapping[str, Value]], float]
          ) -> list[Choice]:  # fmt: skip
    """Return the best of the pool by expected improvement per second, best first."""
    if belief.model is not None:
        own = belief.space.context.baseline
        pool = [c for c in pool if belief.model.fits_in_memory({**own, **c}) is None]
    if not pool:
        return []
    trend = _trend(belief.space, belief.model, pool)
    mean, sd = belief.scores.predict(place(belief.space, pool), trend)
    improvement = expect_improvement(mean, sd, belief.incumbent) * belief.runs(pool)
    rate = improvement / np.array([price_s(c) for c in pool])
    rate[improvement < LEAST_IMPROVEMENT] *= _HARDLY
    prior = (lambda i: float(trend[i])) if belief.model is not None else (lambda _: None)
    return [
        Choice(pool[i], float(mean[i]), float(sd[i]), float(improvement[i]), prior(i), belief.incumbent)
        for i in np.argsort(-rate, kind="stable")[:_POLISH_FROM]
    ]


def expect_improvement(mean: Array, sd: Array, incumbent: float) -> Array:
    """Return the expected improvement over the incumbent of scores that are normal with these means and deviations."""
    z = (mean - incumbent) / sd
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    improvement: Array = np.maximum((mean - incumbent) * _normal_below(z) + sd * density, 0.0)
    return improvement


def _normal_below(z: Array) -> Array:
    """The standard normal distribution function."""
    return np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z])


def _believe(surrogate: Surrogate, axes: Sequence[Axis], space: Space, model: Predictor | None,
             pending: Sequence[Mapping[str, Value]], scores: Array, errors: Array) -> Surrogate:  # fmt: skip
    """Return the process as if the pending strategies had brought what it predicts of them."""
    places, trend = place(space, pending), _trend(space, model, pending)
    mean, _ = surrogate.predict(places, trend)
    return condition(
        axes,
        np.concatenate([surrogate.places, places]),
        np.concatenate([scores, mean]),
        np.concatenate([errors, np.full(len(pending), _BASELINE_ERROR)]),
        np.concatenate([surrogate.trend, trend]),
        surrogate.beta_sd,
        surrogate.settings,
    )


def _learn_failures(space: Space, axes: Sequence[Axis], told: Sequence[Told]) -> Surrogate | None:
    """Regress 'failed' (1) against 'ran' (0), less the usual share of failures, with the same kernel."""
    ended = [t for t in told if not t.pending]
    if all(t.score is not None for t in ended):
        return None
    alike = [Axis(axis.coordinates, axis.ordered, 0.5) for axis in axes]
    strategies: list[Mapping[str, Value]] = [{}, *(t.changes for t in ended)]
    labels = np.array([0.0, *(0.0 if t.score is not None else 1.0 for t in ended)]) - _FAILS_RARELY
    errors, nothing = np.full(len(strategies), _FAILURE_ERROR), np.zeros(len(strategies))
    return fit(alike, place(space, strategies), labels, errors, nothing, 0.0)


def _trend(space: Space, model: Predictor | None, strategies: Sequence[Mapping[str, Value]]) -> Array:
    if model is None:
        return np.zeros(len(strategies))
    own = space.context.baseline
    step_s = np.array(model.predict_many([own, *({**own, **changes} for changes in strategies)]))
    trend: Array = np.clip(np.log(step_s[0] / step_s[1:]), -_MOST_TREND, _MOST_TREND)
    return trend
