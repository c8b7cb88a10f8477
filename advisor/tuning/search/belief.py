"""What measured strategies and the cost model say together: the posterior of every strategy's gain.

The number of observations that count is bounded, whatever the length of the history: repeats of a strategy are merged
into one, and of many strategies the baseline, the best and a space-filling rest are kept.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.candidate_pool import list_axes, place
from advisor.tuning.search.surrogate import Array, Axis, Data, Places, Points, Surrogate
from advisor.tuning.search.surrogate_fit import fit
from advisor.tuning.space.space import Space

MOST_OBSERVED = 64
"""Strategies that the Gaussian process has seen at most, the baseline included. A prediction's work grows with their
square; of ever more strategies around the same best ones the later tell ever less."""
MOST_FAILURES = 32
"""Strategies that the failures' process has seen at most, for the same reason: half of them failed ones."""
_BEST_KEPT = 24
"""Of those, strategies that are kept because their scores are the best: what may be recommended is among them."""
_BASELINE_VARIANCE = 0.002**2 + 0.003**2
"""Variance of the baseline's score. It is 0 by definition; this much keeps the covariance regular."""
_REPEAT_VARIANCE = 0.003**2
"""Variance that every measurement of a strategy adds beside its own error: two races of one differ by that at least."""
_USUAL_ERROR = 0.02
"""Standard error of a measurement, in ln(throughput), before any was seen."""
_USUAL_GAIN = 0.1
"""Standard deviation of gains by which scores are shrunk before the best are picked: a wild guess is no best."""
_LEAST_DOUBT, _DOUBT_PER_RESIDUAL, _MOST_DOUBT = 0.15, 2.0, 0.6
"""Standard deviation of the cost model's factor: 0.15 for a perfect one, and twice its residual more, up to 0.6."""
_MOST_TREND = 3.0
"""A predicted gain counts up to that, in ln(throughput): a factor of twenty is a wrong model."""
_FAILS_RARELY = 0.06
"""Share of strategies that fail, before any was seen to."""
_FAILURE_VARIANCE = 0.1**2 + 0.003**2
"""Noise of a failure (1) or a success (0): the same strategy nearly always fails again."""
_FAILURE_SCALE = 0.5
"""How much one knob is expected to decide whether a strategy fails."""
_FAILURE_DOUBT = 0.2
"""What the failures' process is unsure of at least, so that no strategy is ruled out by its neighbours alone."""


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
class Observation:
    """What one measurement of a strategy teaches the search; a strategy measured again has several."""

    changes: Changes
    score: float | None
    """ln(throughput / baseline's); None when the strategy itself failed, or is still being measured."""
    error: float = _USUAL_ERROR
    """The score's standard error."""
    pending: bool = False
    """It is being measured in another session."""
    given_up: bool = False
    """Its measurement was ended early, because it was surely too slow."""


@dataclass(frozen=True)
class Scored:
    """A strategy with all its measurements merged."""

    changes: Changes
    score: float
    variance: float
    """Of the merged score."""
    count: int
    """Measurements."""


@dataclass(frozen=True)
class Belief:
    """Everything that the measured strategies and the cost model say together."""

    space: Space
    model: Predictor | None
    scores: Surrogate
    failures: Surrogate | None
    measured: tuple[Scored, ...]
    """Strategies with a score, the best and a space-filling rest; the first is the baseline, without changes."""
    points: Points
    """Their posterior."""
    barred: frozenset[Changes]
    """Strategies that failed or are under way: never to be chosen."""
    error: float
    """Standard error that one more measurement is expected to have: the usual one so far."""
    count: int
    """Strategies with a score, those that were left out included."""

    @property
    def incumbent(self) -> float:
        """The best posterior mean among measured strategies."""
        return float(self.points.mean.max())

    @property
    def next_variance(self) -> float:
        """Variance of one more measurement."""
        return self.error**2 + _REPEAT_VARIANCE

    def look_at(self, strategies: Sequence[Mapping[str, Value]]) -> Points:
        """Return the posterior of the strategies' scores."""
        return self.scores.look_at(
            place(self.space, strategies), predict_gains(self.space, self.model, strategies)
        )

    def predict(self, strategies: Sequence[Mapping[str, Value]]) -> tuple[Array, Array]:
        """Return mean and standard deviation of the strategies' scores."""
        points = self.look_at(strategies)
        return points.mean, np.sqrt(points.variance)

    def runs(self, places: Places) -> Array:
        """Return the probability that each strategy (a row of places) runs at all."""
        if self.failures is None:
            return np.ones(len(places))
        fails = self.failures.look_at(places, np.zeros(len(places)))
        doubt = np.maximum(np.sqrt(fails.variance), _FAILURE_DOUBT)
        return normal_below((0.5 - _FAILS_RARELY - fails.mean) / doubt)


def learn(space: Space, observations: Sequence[Observation], model: Predictor | None) -> Belief:
    """Return what is believed after these measurements. Deterministic, and bounded however many they are."""
    axes = list_axes(space)
    scored = [s for s in merge_repeats(observations) if s.changes]
    places = place(space, [s.changes for s in scored])
    chosen = choose_observed(axes, places, scored, MOST_OBSERVED - 1)
    measured = (Scored(Changes(), 0.0, _BASELINE_VARIANCE, 1), *(scored[i] for i in chosen))
    strategies = [s.changes for s in measured]
    data = Data(
        places=place(space, strategies),
        scores=np.array([s.score for s in measured]),
        noise=np.array([s.variance for s in measured]),
        trend=predict_gains(space, model, strategies),
    )
    doubt = 0.0 if model is None else min(_MOST_DOUBT, _LEAST_DOUBT + _DOUBT_PER_RESIDUAL * model.residual)
    surrogate = fit(axes, data, doubt)
    points = surrogate.look_at(data.places, data.trend)
    pending = {o.changes: o.changes for o in observations if o.pending}
    if pending:
        surrogate = _believe(surrogate, space, model, list(pending.values()))
    errors = [o.error for o in observations if o.score is not None and o.changes]
    failed = {o.changes for o in observations if o.score is None and not o.pending}
    return Belief(
        space=space,
        model=model,
        scores=surrogate,
        failures=_learn_failures(space, axes, observations, measured),
        measured=measured,
        points=points if not pending else surrogate.look_at(data.places, data.trend),
        barred=frozenset(failed | pending.keys()),
        error=median(errors) if errors else _USUAL_ERROR,
        count=len(scored),
    )


def merge_repeats(observations: Sequence[Observation]) -> list[Scored]:
    """Return each scored strategy once, its measurements averaged by their precisions; failed ones are left out."""
    groups: dict[Changes, list[Observation]] = {}
    failed: set[Changes] = set()
    for observation in observations:
        key = observation.changes
        if observation.score is not None:
            groups.setdefault(key, []).append(observation)
        elif not observation.pending:
            failed.add(key)
    merged = []
    for key, group in groups.items():
        if key in failed:
            continue
        precisions = [1.0 / (o.error**2 + _REPEAT_VARIANCE) for o in group]
        total = sum(precisions)
        score = sum(p * (o.score or 0.0) for p, o in zip(precisions, group, strict=True)) / total
        merged.append(Scored(group[0].changes, score, 1.0 / total, len(group)))
    return merged


def choose_observed(axes: Sequence[Axis], places: Places, scored: Sequence[Scored], most: int) -> list[int]:
    """Return which strategies the process sees: the best ones, and of the rest those farthest from all others.

    In the order of being chosen, best and far ones in turn, so that the first few are a good choice as well.
    """
    if len(scored) <= most:
        return list(range(len(scored)))
    shrunk = np.array([s.score * _USUAL_GAIN**2 / (_USUAL_GAIN**2 + s.variance) for s in scored])
    best = np.argsort(-shrunk, kind="stable")[:_BEST_KEPT]
    scales = np.array([axis.scale for axis in axes])
    at = np.zeros(places.shape)
    for j, axis in enumerate(axes):
        at[:, j] = np.array(axis.coordinates)[places[:, j]]
    ordered = np.array([axis.ordered for axis in axes])

    def distance_from(one: Array) -> Array:
        apart = np.abs(at - one)
        return np.asarray(np.where(ordered, apart, apart > 0) @ scales, dtype=np.float64)

    own = np.zeros(len(axes))
    nearest = distance_from(own)
    for i in best:
        nearest = np.minimum(nearest, distance_from(at[i]))
    far: list[int] = []
    while len(far) + len(best) < most:
        farthest = int(np.argmax(nearest))
        far.append(farthest)
        nearest = np.minimum(nearest, distance_from(at[farthest]))
        nearest[farthest] = -1.0
    mixed: list[int] = []
    for place_ in range(max(len(best), len(far))):
        mixed += [int(i) for i in best[place_ : place_ + 1]] + far[place_ : place_ + 1]
    return list(dict.fromkeys(mixed))


def predict_gains(space: Space, model: Predictor | None, strategies: Sequence[Mapping[str, Value]]) -> Array:
    """Return the gains that the cost model predicts, in ln(throughput); zeros without one."""
    if model is None or not strategies:
        return np.zeros(len(strategies))
    own = space.context.baseline
    step_s = np.array(model.predict_many([own, *({**own, **changes} for changes in strategies)]))
    gains: Array = np.clip(np.log(step_s[0] / step_s[1:]), -_MOST_TREND, _MOST_TREND)
    return gains


def normal_below(z: Array) -> Array:
    """The standard normal distribution function."""
    return np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z])


def _believe(surrogate: Surrogate, space: Space, model: Predictor | None,
             pending: Sequence[Mapping[str, Value]]) -> Surrogate:  # fmt: skip
    """Return the process as if the pending strategies had brought what it predicts of them (kriging believer)."""
    places, trend, data = place(space, pending), predict_gains(space, model, pending), surrogate.data
    points = surrogate.look_at(places, trend)
    more = Data(
        np.concatenate([data.places, places]),
        np.concatenate([data.scores, points.mean]),
        np.concatenate([data.noise, np.full(len(pending), _BASELINE_VARIANCE)]),
        np.concatenate([data.trend, trend]),
    )
    return Surrogate(surrogate.axes, more, surrogate.settings, surrogate.beta_sd)


def _learn_failures(
    space: Space, axes: Sequence[Axis], observations: Sequence[Observation], measured: Sequence[Scored]
) -> Surrogate | None:
    """Regress 'failed' (1) against 'ran' (0), less the usual share of failures, with the same kernel."""
    failed = {o.changes: o.changes for o in observations if o.score is None and not o.pending}
    if not failed:
        return None
    latest = list(failed.values())[-MOST_FAILURES // 2 :]
    ran = [s.changes for s in measured[: MOST_FAILURES - len(latest)]]
    strategies = [*ran, *latest]
    alike = [Axis(axis.coordinates, axis.ordered, _FAILURE_SCALE) for axis in axes]
    labels = np.array([0.0] * len(ran) + [1.0] * len(latest)) - _FAILS_RARELY
    noise, nothing = np.full(len(strategies), _FAILURE_VARIANCE), np.zeros(len(strategies))
    return fit(alike, Data(place(space, strategies), labels, noise, nothing), 0.0)
