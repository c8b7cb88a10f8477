"""The cost model: predicts the step time of any strategy from the probe and a handful of measured ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs import KnobContext
from advisor.protocol.trials import Block
from advisor.tuning.calibration import Unknown, doubt_of, fit
from advisor.tuning.cost_priors import PAYLOAD, link_bits_per_s, prior_of
from advisor.tuning.effects import name_pieces
from advisor.tuning.exchange import find_gradients, shape_of
from advisor.tuning.memory import misfit_sentence
from advisor.tuning.step_model import Probe, StepModel, Times, read_probe
from advisor.tuning.timeline import Array

LEAST_RESIDUAL = 0.03
_UNTRIED = 0.15
"""What the model is believed to be off before it was compared with anything."""
_MODEL_ERROR = 0.02
"""What the model is off at best, as a standard deviation of ln(step time)."""
_LEAST_ERROR = 0.01
"""The baseline's own: gains are relative to it, so that it is to be met."""
_LINK_ERROR = 0.1
_NOTHING = 60.0
"""exp(-60) of a second is none."""
_COMMUNICATION = (
    Unknown.HOP, Unknown.INNER_HOP, Unknown.WIRE, Unknown.INNER_WIRE, Unknown.HANDLING, Unknown.INNER_HANDLING,
    Unknown.MESSAGE, Unknown.COPY, Unknown.JITTER,
)  # fmt: skip
_PHASE_ERROR = 0.04
"""Phases are medians of medians: that share of the step is their error."""


@dataclass(frozen=True)
class Observation:
    """A measured strategy."""

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
    bits_per_s: float | None
    """Nominal rate of a node's link; None where nobody knows one."""

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

    def fits_in_memory(self, values: Mapping[str, Value]) -> str | None:
        """Return a sentence when the strategy cannot fit into the devices' memory, else None."""
        return misfit_sentence(self.model.context, self.model.probe.peak_memory_bytes, values)

    def on(self, nodes: int | None = None, bits_per_s: float | None = None) -> "CostModel":
        """Return the model for as many nodes with the same ranks each, or other links between them.

        The samples of a rank per step stay as they are. Raises ValueError when a number is not above 0.
        """
        if nodes is not None and nodes < 1:
            raise ValueError(f"nodes is {nodes}: give a number of 1 or more")
        if bits_per_s is not None and not bits_per_s > 0:
            raise ValueError(f"bits_per_s is {bits_per_s}: give a rate above 0")
        model, parameters = self.model, list(self.parameters)
        if nodes is not None:
            facts = model.context.facts
            moved = facts.model_copy(update={"nodes": nodes, "world_size": nodes * facts.local_world_size})
            model = replace(model, context=replace(model.context, facts=moved), shape=model.shape.on(nodes))
        if bits_per_s is not None:
            parameters[Unknown.WIRE] = (
                parameters[Unknown.WIRE] + math.log(self.bits_per_s / bits_per_s)
                if self.bits_per_s
                else math.log(8.0 / (PAYLOAD * bits_per_s))
            )
        rate = self.bits_per_s if bits_per_s is None else bits_per_s
        return replace(self, model=model, parameters=tuple(parameters), bits_per_s=rate)

    @cached_property
    def _baseline_s(self) -> float:
        return self.predict_step_s(self.model.context.baseline)


def calibrate(
    context: KnobContext, probe: Sequence[Block], observations: Sequence[Observation]
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
    usable = [o for o in observations if o.step_time_s > 0 and math.isfinite(math.log(o.step_time_s))]
    strategies = [context.baseline, *(observation.values for observation in usable)]
    model = StepModel(
        context=context,
        shape=shape_of(facts),
        gradients=find_gradients(facts, probe),
        probe=measured,
        pieces=name_pieces(context, strategies[1:]),
        jitter_ranks=facts.world_size,
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
    rows = model.lay_out(strategies)

    def misfits(sets: Array) -> Array:
        times = model.run(rows, sets)
        parts = [np.log(np.maximum(times.step_s, 1e-12)) - target, _phase_misfits(measured, times)]
        if links:
            seconds = np.array([link.seconds for link in links])
            parts.append(np.log(model.time_links(links, sets)) - np.log(seconds))
        return np.concatenate(parts, axis=1)

    errors = [math.hypot(max(0.0, error), _MODEL_ERROR) for error in noise]
    errors[0] = max(_LEAST_ERROR, measured.error)
    errors += [_PHASE_ERROR] * 2 + [_LINK_ERROR * math.sqrt(max(1.0, len(links) / 8))] * len(links)
    prior = prior_of(context, measured, model.pieces, timed)
    found = fit(misfits, np.array(errors), prior)
    strategies_only = slice(1, len(strategies))
    return CostModel(
        residual=doubt_of(
            found.misfits[strategies_only], found.leverage[strategies_only], _UNTRIED, LEAST_RESIDUAL
        ),
        model=model,
        parameters=tuple(float(value) for value in found.best),
        bits_per_s=link_bits_per_s(context),
    )


def _phase_misfits(measured: Probe, times: Times) -> Array:
    """How far the baseline's backward and its exposed communication are off, as shares of its step; shape (K, 2)."""
    exposed = times.exposed_s[:, :1] - measured.exposed_s if measured.exposed_s is not None else None
    backward = times.backward_s[:, :1] - measured.backward_s
    columns = [np.zeros_like(backward) if exposed is None else exposed, backward]
    return np.concatenate(columns, axis=1) / measured.step_s
