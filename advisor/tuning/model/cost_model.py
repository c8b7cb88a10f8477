"""The cost model: predicts the step time of any strategy from the probe and a handful of measured ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.measured.results import LinkTiming
from advisor.protocol.measured.trials import Block
from advisor.tuning.model.communication_schedule import find_gradients, shape_of
from advisor.tuning.model.cost_priors import PAYLOAD, TOLD_SPREAD, find_burst_s, link_bits_per_s, prior_of
from advisor.tuning.model.learned_factors import Target, name_pieces
from advisor.tuning.model.map_fit import Unknown, doubt_of, fit
from advisor.tuning.model.memory import misfit_sentence
from advisor.tuning.model.step_model import Probe, Rows, StepModel, Times, read_probe
from advisor.tuning.model.timeline import Array

LEAST_RESIDUAL = 0.03
"""The model's own doubt at least, in ln(step time): no fit to few strategies makes it better than that."""
_UNTRIED = 0.15
"""What the model is believed to be off before it was compared with anything."""
_MODEL_ERROR = 0.02
"""What the model is off at best, as a standard deviation of ln(step time)."""
_LEAST_ERROR = 0.01
"""The baseline's own: gains are relative to it, so that it is to be met."""
_LINK_ERROR = 0.1
"""Standard deviation of ln(seconds) of a timed collective around what the model says of it."""
MOST_FITTED = 32
"""Strategies that the model is fitted to at most, beside the baseline: the work grows with their number, and after
thirty the parameters are known better than the model is right."""
_SMALLEST_ERROR = 1e-3
"""Standard error of ln(step time) below which an observation counts no more."""
_SHIFT = 0.02
"""Step of the numeric derivatives, in logarithms."""
_NOTHING = 60.0
"""exp(-60) of a second is none."""
_COMMUNICATION = (
    Unknown.HOP, Unknown.INNER_HOP, Unknown.WIRE, Unknown.INNER_WIRE, Unknown.HANDLING, Unknown.INNER_HANDLING,
    Unknown.MESSAGE, Unknown.COPY, Unknown.JITTER,
)  # fmt: skip
_PHASE_ERROR = 0.04
"""Phases are medians of medians: that share of the step is their error."""


@dataclass(frozen=True)
class TimedStrategy:
    """A strategy and its measured step time."""

    values: Mapping[str, Value]
    """The value of every knob: the baseline's with the changes."""
    step_time_s: float
    error: float
    """Standard error of ln(step time)."""


@dataclass(frozen=True)
class CostModel:
    """Predicts step times in seconds; made by `calibrate`."""

    residual: float
    """Root mean square of ln(predicted / measured) per degree of freedom left: the model's own doubt."""
    model: StepModel
    parameters: tuple[float, ...]
    """Logarithms of the physical parameters, then of the learnt effects."""
    covariance: Array
    """How far the parameters may be off together, as the fit leaves it: (parameters, parameters)."""
    bits_per_s: float | None
    """Nominal rate of a node's link; None where none is known."""

    def predict_step_s(self, values: Mapping[str, Value]) -> float:
        """Return the step time of a strategy (a value of every knob)."""
        return self.predict_many([values])[0]

    def predict_many(self, strategies: Sequence[Mapping[str, Value]]) -> list[float]:
        """Return the step time of every strategy; one call for many is far cheaper than many calls."""
        if not strategies:
            return []
        times = self.model.run(self.model.lay_out(strategies), np.array([self.parameters]))
        return [float(second) for second in times.step_s[0]]

    def predict_silent_step_s(self, values: Mapping[str, Value]) -> float:
        """Return the step time of a strategy if communication and waiting for other ranks took no time."""
        parameters = np.array([self.parameters])
        parameters[0, list(_COMMUNICATION)] = -_NOTHING
        times = self.model.run(self.model.lay_out([values]), parameters)
        return float(times.step_s[0, 0])

    def predict_gain(self, values: Mapping[str, Value]) -> float:
        """Return ln(throughput of the strategy / the baseline's), both predicted on this model's cluster."""
        return math.log(self._baseline_s / self.predict_step_s(values))

    def find_doubts(self, strategies: Sequence[Mapping[str, Value]], here: "CostModel") -> list[float]:
        """Return the standard deviation of ln(step time / the baseline's of `here`), for each strategy.

        `here` is the model that this one was moved from (`on`), or this one: what its cluster measured of the baseline
        cannot be off. The model's own misses are in it, a larger share of steps that are shorter there; and what the
        parameters may be off, the more a strategy, a link or a cluster depends on what the measurements did not show.
        """
        if not strategies:
            return []
        shifts = _SHIFT * np.vstack([np.zeros(len(self.parameters)), np.eye(len(self.parameters))])
        there = np.log(self._run(strategies, shifts))
        if here.bits_per_s is None and self.bits_per_s is not None:
            shifts[:, Unknown.WIRE] = (
                0.0  # The links of there are others, whose rate was not taken from these.
            )
        ratios = there - np.log(here._run([self.model.context.baseline], shifts))
        slopes = (ratios[1:] - ratios[0]) / _SHIFT
        squares = np.einsum("ps,pq,qs->s", slopes, self.covariance, slopes)
        own = self.residual * max(1.0, here.predict_baseline_s() / self.predict_baseline_s())
        return [math.hypot(own, math.sqrt(max(0.0, float(square)))) for square in squares]

    def _run(self, strategies: Sequence[Mapping[str, Value]], shifts: Array) -> Array:
        """Step times with the parameters shifted: (K, S) for shifts (K, P)."""
        step_s: Array = self.model.run(self.model.lay_out(strategies), self.parameters + shifts).step_s
        return step_s

    def fits_in_memory(self, values: Mapping[str, Value]) -> str | None:
        """Return a sentence when the strategy cannot fit into the devices' memory, else None."""
        return misfit_sentence(self.model.context, self.model.probe.peak_memory_bytes, values)

    def on(
        self, nodes: int | None = None, bits_per_s: float | None = None, batch: float = 1.0
    ) -> "CostModel":
        """Return the model for as many nodes with the same ranks each, other links between them, or another batch.

        `batch` is in times of a rank's measured samples per step: forward, backward and reading are taken to grow with
        it, the optimizer and what is communicated are not. Raises ValueError when a number is not above 0.
        """
        if not batch > 0:
            raise ValueError(f"batch is {batch}: give a number above 0")
        if nodes is not None and nodes < 1:
            raise ValueError(f"nodes is {nodes}: give a number of 1 or more")
        if bits_per_s is not None and not bits_per_s > 0:
            raise ValueError(f"bits_per_s is {bits_per_s}: give a rate above 0")
        model, parameters = self.model, list(self.parameters)
        if nodes is not None:
            facts = model.context.facts
            moved = facts.model_copy(update={"nodes": nodes, "world_size": nodes * facts.local_world_size})
            model = replace(model, context=replace(model.context, facts=moved), shape=model.shape.on(nodes))
        covariance = self.covariance
        if bits_per_s is not None:
            if self.bits_per_s:
                parameters[Unknown.WIRE] += math.log(self.bits_per_s / bits_per_s)
            else:
                # The links of here say nothing of those: they are known as any link whose rate is told.
                parameters[Unknown.WIRE] = math.log(8.0 / (PAYLOAD * bits_per_s))
                covariance = covariance.copy()
                covariance[Unknown.WIRE], covariance[:, Unknown.WIRE] = 0.0, 0.0
                covariance[Unknown.WIRE, Unknown.WIRE] = TOLD_SPREAD**2
            model = replace(model, burst_s=find_burst_s(model.context, bits_per_s))
        if batch != 1.0:
            probe = model.probe
            grown = replace(
                probe,
                forward_s=probe.forward_s * batch,
                backward_s=probe.backward_s * batch,
                wait_s=probe.wait_s * batch,
            )
            model = replace(model, probe=grown)
            parameters[Unknown.READING] += math.log(batch)
        rate = self.bits_per_s if bits_per_s is None else bits_per_s
        return replace(
            self, model=model, parameters=tuple(parameters), covariance=covariance, bits_per_s=rate
        )

    def predict_baseline_s(self) -> float:
        """Return the step time of the script as it stands, on this model's cluster."""
        return self._baseline_s

    @cached_property
    def _baseline_s(self) -> float:
        return self.predict_step_s(self.model.context.baseline)


def calibrate(
    context: KnobContext, probe: Sequence[Block], observations: Sequence[TimedStrategy]
) -> CostModel | None:
    """Return the model that explains the probe and the observations best; None when too little is known.

    `probe` are measured blocks: those without overrides are the baseline's, all of them show where buckets end.
    Deterministic. The parameters are the most probable ones under `prior_of`; how each enters a step is in
    docs/cost-model.md.
    """
    facts = context.facts
    measured = read_probe(probe, facts.dataloader is not None)
    if measured is None or facts.gradient_bytes <= 0 or facts.sharding:
        return None
    usable = choose_telling(context, observations)
    strategies = [context.baseline, *(observation.values for observation in usable)]
    model = StepModel(
        context=context,
        shape=shape_of(facts),
        gradients=find_gradients(facts, probe),
        probe=measured,
        pieces=name_pieces(context, strategies[1:]),
        jitter_ranks=facts.world_size,
        burst_s=find_burst_s(context, link_bits_per_s(context)),
    )
    timed = any(b.result and b.result.calibration and b.result.calibration.gradients for b in probe)
    links = [
        link
        for block in probe
        if block.result and block.result.calibration
        for link in block.result.calibration.links
        if link.ranks > 1 and link.bytes > 0 and link.seconds > 0
    ]
    target = np.log([measured.step_s, *(o.step_time_s for o in usable)])
    noise = [measured.error, *(o.error for o in usable)]
    errors = [math.hypot(max(0.0, error), _MODEL_ERROR) for error in noise]
    errors[0] = max(_LEAST_ERROR, measured.error)
    errors += [_PHASE_ERROR] * 2 + [_LINK_ERROR * math.sqrt(max(1.0, len(links) / 8))] * len(links)
    prior = prior_of(context, measured, model.pieces, timed)
    found = fit(_Misfits(model, model.lay_out(strategies), target, links), np.array(errors), prior)
    strategies_only = slice(1, len(strategies))
    return CostModel(
        residual=doubt_of(
            found.misfits[strategies_only], found.leverage[strategies_only], _UNTRIED, LEAST_RESIDUAL
        ),
        model=model,
        parameters=tuple(float(value) for value in found.best),
        covariance=found.covariance,
        bits_per_s=link_bits_per_s(context),
    )


def choose_telling(context: KnobContext, observations: Sequence[TimedStrategy]) -> list[TimedStrategy]:
    """Return the observations that the model is fitted to: repeats merged, and MOST_FITTED of them at most.

    Of more, fast strategies before slow ones: first those that show a value of a knob that none before them showed, so
    that every effect that was measured is learnt, then the fastest of the rest.
    """
    groups: dict[tuple[Value, ...], list[TimedStrategy]] = {}
    for one in observations:
        if one.step_time_s > 0 and math.isfinite(one.step_time_s):
            groups.setdefault(tuple(one.values.values()), []).append(one)
    merged = [_merge(group) for group in groups.values()]
    if len(merged) <= MOST_FITTED:
        return merged
    own = tuple(context.baseline.items())
    ranked = sorted(range(len(merged)), key=lambda i: merged[i].step_time_s)
    seen: set[tuple[str, Value]] = set()
    telling: list[int] = []
    for i in ranked:
        values = merged[i].values
        new = {(name, values[name]) for name, base in own if values[name] != base} - seen
        if new:
            seen |= new
            telling.append(i)
    kept = list(dict.fromkeys([*telling, *ranked]))[:MOST_FITTED]
    return [merged[i] for i in sorted(kept)]


def _merge(group: Sequence[TimedStrategy]) -> TimedStrategy:
    """One observation for several of one strategy: their mean by precision, in logarithms."""
    if len(group) == 1:
        return group[0]
    weights = [1.0 / max(o.error, _SMALLEST_ERROR) ** 2 for o in group]
    logs = [math.log(o.step_time_s) for o in group]
    mean = sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights)
    return TimedStrategy(group[0].values, math.exp(mean), 1.0 / math.sqrt(sum(weights)))


@dataclass(frozen=True)
class _Misfits:
    """How far a set of parameters is off: step times of the baseline and the strategies, its phases, timed links."""

    model: StepModel
    rows: Rows
    """The baseline first."""
    target: Array
    """Logarithms of the measured step times."""
    links: Sequence[LinkTiming]

    def _find(self, sets: Array, shifts: Array) -> Array:
        """Return ln(predicted / measured), shape (K, R); `shifts` are added to what the pieces say of each target."""
        times = self.model.run(self.rows, sets, shifts)
        parts = [
            np.log(np.maximum(times.step_s, 1e-12)) - self.target,
            _phase_misfits(self.model.probe, times),
        ]
        if self.links:
            seconds = np.array([link.seconds for link in self.links])
            parts.append(np.log(self.model.time_links(self.links, sets)) - np.log(seconds))
        return np.concatenate(parts, axis=1)

    def find_slopes(self, best: Array, step: float, others: Array) -> tuple[Array, Array, Array]:
        """Return the misfits of a set, their derivatives, and the misfits of other sets.

        Pieces that act on one target move a strategy alike, each by its weight: one step for each target is enough.
        """
        physical, targets = self.model.list_physical(), sorted({piece.target for piece in self.model.pieces})
        moves = 1 + len(physical) + len(targets)
        sets = np.concatenate([np.tile(best, (moves, 1)), others])
        shifts = np.zeros((len(sets), len(Target)))
        for row, column in enumerate(physical, start=1):
            sets[row, column] += step
        for row, target in enumerate(targets, start=1 + len(physical)):
            shifts[row, target] = step
        everything = self._find(sets, shifts)
        found = everything[:moves]
        moved = (found[1:] - found[0]).T / step
        slopes = np.zeros((found.shape[1], len(best)))
        slopes[:, physical] = moved[:, : len(physical)]
        column_of = {target: len(physical) + i for i, target in enumerate(targets)}
        own = [column_of[piece.target] for piece in self.model.pieces]
        strategies = len(self.target)
        slopes[:strategies, len(Unknown) :] = self.rows.weights * moved[:strategies, own]
        return found[0], slopes, everything[moves:]


def _phase_misfits(measured: Probe, times: Times) -> Array:
    """How far the baseline's backward and its exposed communication are off, as shares of its step; shape (K, 2)."""
    exposed = times.exposed_s[:, :1] - measured.exposed_s if measured.exposed_s is not None else None
    backward = times.backward_s[:, :1] - measured.backward_s
    columns = [np.zeros_like(backward) if exposed is None else exposed, backward]
    return np.concatenate(columns, axis=1) / measured.step_s
