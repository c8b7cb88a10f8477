"""Puts a step together: reading, forward, backward with its reductions, waiting for each other, optimizer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.measured.results import LinkLevel, LinkTiming
from advisor.protocol.measured.trials import Block
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.measure.phases import pool_phases
from advisor.tuning.model.collectives import Shape, flat_ring
from advisor.tuning.model.communication_schedule import SCHEDULED, plan_of, schedule_of
from advisor.tuning.model.learned_factors import Piece, Target, weigh_pieces
from advisor.tuning.model.map_fit import Unknown
from advisor.tuning.model.timeline import (
    Array,
    Costs,
    Gradient,
    Line,
    Schedule,
    Table,
    run_backward,
    tabulate,
)

_PHYSICAL = len(Unknown)
"""Parameters before those of the pieces."""
_SHARPNESS = 8.0
"""Exponent of the soft maximum of computing and reading: near the balance both are waited for."""


@dataclass(frozen=True)
class Probe:
    """The baseline as it was measured; seconds per step."""

    step_s: float
    error: float
    """Standard error of ln(step_s)."""
    forward_s: float
    backward_s: float
    """With what reductions steal from it, without those that outlast it."""
    exposed_s: float | None
    """Waiting for reductions and for other ranks."""
    reduced_s: float | None
    """What reductions take of it; the rest is waiting for ranks that come late."""
    optimizer_s: float
    other_s: float
    """All else, in every step: own code and collectives, what a late rank does."""
    wait_s: float
    peak_memory_bytes: int
    has_loader: bool
    """Batches come from a loader whose workers are known."""


def read_probe(blocks: Sequence[Block], has_loader: bool) -> Probe | None:
    """Return what the baseline's blocks say together; None without a time or phases.

    Of several those with the quicker half of forward passes: other work on the machine slows them, no link does.
    """
    baseline = _choose_calm(
        [b for b in blocks if b.result and b.summary and not b.plan.overrides and b.summary.steady_steps]
    )
    phases = pool_phases(baseline, median)
    if not baseline or phases.forward_s + phases.backward_s <= 0:
        return None
    logs = [b.summary.log_step_time for b in baseline if b.summary]
    errors = [b.summary.log_step_time_se for b in baseline if b.summary]
    step_s = math.exp(median(logs))
    # What the model gives no part of its own: what is spent there in every step, however it is spread.
    parts = (phases.forward_s, phases.backward_s, phases.optimizer_s, phases.data_wait_s)
    waited_s = (phases.exposed_comm_s or 0.0) + phases.wait_s
    known_s = sum(parts) + waited_s
    scale = min(1.0, step_s / max(known_s, 1e-12))
    return Probe(
        step_s=step_s,
        error=median(errors) / math.sqrt(len(errors)),
        forward_s=phases.forward_s * scale,
        backward_s=phases.backward_s * scale,
        exposed_s=None if phases.exposed_comm_s is None else waited_s * scale,
        reduced_s=None if phases.exposed_comm_s is None else phases.exposed_comm_s * scale,
        optimizer_s=phases.optimizer_s * scale,
        other_s=max(0.0, step_s - known_s),
        wait_s=phases.data_wait_s * scale,
        peak_memory_bytes=max(b.result.peak_memory_bytes for b in baseline if b.result),
        has_loader=has_loader,
    )


def _choose_calm(blocks: Sequence[Block]) -> list[Block]:
    forward_s = [b.result.phases.forward_s if b.result else 0.0 for b in blocks]
    told = [seconds for seconds in forward_s if seconds > 0.0]
    if not told:
        return list(blocks)
    usual_s = median(told)
    return [block for block, seconds in zip(blocks, forward_s, strict=True) if 0.0 < seconds <= usual_s]


@dataclass(frozen=True)
class Rows:
    """Strategies ready to be timed; arrays of shape (S,) and (S, pieces)."""

    table: Table
    weights: Array
    workers: Array
    batches: Array
    """The script's batches that one of theirs holds."""


@dataclass(frozen=True)
class Times:
    """What a step is predicted to take, in seconds; arrays of shape (K, S)."""

    step_s: Array
    """For the samples of one of the script's own steps: larger batches spread over several of them."""
    backward_s: Array
    """With what reductions steal from it, in a step that reduces."""
    exposed_s: Array
    """Waiting for reductions and for other ranks, in a step that reduces."""


@dataclass(frozen=True)
class StepModel:
    """Everything but the parameters; K parameter sets × S strategies at once."""

    context: KnobContext
    shape: Shape
    gradients: tuple[Gradient, ...]
    probe: Probe
    pieces: tuple[Piece, ...]
    jitter_ranks: int
    """Ranks that the probe ran on: jitter is what they waited for."""
    burst_s: float = 0.0
    """What the links between nodes pass at once after a rest, in seconds of their rate."""

    def lay_out(self, strategies: Sequence[Mapping[str, Value]]) -> Rows:
        """Return strategies (a value of every knob each) as rows."""
        context = self.context
        keys = [tuple([values[name] for name in SCHEDULED]) for values in strategies]
        new = {
            key: values for key, values in zip(keys, strategies, strict=True) if key not in self._schedules
        }
        plans = [plan_of(values, context.baseline, context.facts) for values in new.values()]
        if self.gradients:
            self._line.prepare(plan for plan in plans if plan)
        for key, values in new.items():
            self._schedules[key] = schedule_of(
                values, context.baseline, context.facts, self.shape, self._line
            )
        return Rows(
            table=tabulate([self._schedules[key] for key in keys]),
            weights=weigh_pieces(self.pieces, context, strategies),
            workers=np.array([float(values["loader_num_workers"]) for values in strategies]),
            batches=np.array([float(values["batch_size_multiple"]) for values in strategies]),
        )

    def list_physical(self) -> list[int]:
        """Return the physical parameters that mean something here: links that exist, a loader, a GPU."""
        idle: set[Unknown] = set()
        if not self.probe.has_loader:
            idle |= {Unknown.READING, Unknown.READER}
        if self.context.facts.device is not DeviceKind.CUDA:
            idle.add(Unknown.LAUNCHING)
        if self.shape.nodes < 2:
            idle |= {Unknown.HOP, Unknown.WIRE, Unknown.HANDLING}
        if self.shape.local < 2:
            idle |= {Unknown.INNER_HOP, Unknown.INNER_WIRE, Unknown.INNER_HANDLING}
        return [int(unknown) for unknown in Unknown if unknown not in idle]

    def run(self, rows: Rows, sets: Array, shifts: Array | None = None) -> Times:
        """Return the times of every strategy under every parameter set (K, P).

        `shifts` (K, targets) are added to the logarithms of the factors that the pieces make.
        """
        probe = self.probe
        factors = self._factors(rows, sets, shifts)
        micro = max(1.0, self.context.facts.microbatches_per_step)
        whole_backward = probe.backward_s * _scale(sets, Unknown.BACKWARD) * factors[Target.COMPUTATION]
        work = whole_backward * rows.batches / micro
        costs = self._costs(sets)
        ended, exposed = run_backward(
            rows.table, costs, work, factors[Target.COMMUNICATION], factors[Target.HANDLING]
        )
        computation = _scale(sets, Unknown.COMPUTATION) * factors[Target.COMPUTATION]
        forward = probe.forward_s * computation
        optimizer = probe.optimizer_s * computation * factors[Target.OPTIMIZER]
        other = probe.other_s * _scale(sets, Unknown.COMPUTATION)
        # Of the script's own steps, per exchange.
        interval = rows.table.interval * rows.batches
        jitter = _scale(sets, Unknown.JITTER) * (forward + whole_backward + optimizer) * self._jitter_growth
        waiting = jitter / np.sqrt(interval) if self.shape.world > 1 else 0.0 * jitter
        compute = (
            forward
            + whole_backward
            + (ended - work + exposed) / interval
            + optimizer / np.where(rows.table.merges > 0, interval, rows.batches)
            + other / rows.batches
            + waiting
        )
        if self.context.facts.device is DeviceKind.CUDA:
            messages = rows.table.messages.sum(axis=1) * rows.table.collectives / interval
            launching = _scale(sets, Unknown.LAUNCHING) / rows.batches
            compute = _slower_of(compute, launching + costs.message_s * messages)
        step = self._read(rows, sets, compute, factors[Target.READING]) * factors[Target.STEP]
        return Times(step, whole_backward * rows.batches - work + ended, exposed + waiting)

    def time_links(self, links: Sequence[LinkTiming], sets: Array) -> Array:
        """Return the predicted seconds of timed collectives, nothing else going on; shape (K, links)."""
        costs = self._costs(sets)
        columns: list[Array] = []
        for link in links:
            nodes = 1 if link.level is LinkLevel.NODE else min(link.ranks, self.shape.nodes)
            ring = flat_ring(link.ranks, nodes, self.shape.lockstep)
            latency = costs.hop_s * ring.hops + costs.inner_hop_s * ring.inner_hops + costs.message_s
            wire = costs.wire_s * ring.wire + costs.inner_wire_s * ring.inner_wire
            stream = costs.handling_s * ring.handled + costs.inner_handling_s * ring.inner_handled + wire
            columns.append(latency + link.bytes * np.maximum(stream, wire * max(1, link.concurrent)))
        return np.concatenate(columns, axis=1)

    @cached_property
    def _line(self) -> Line:
        return Line(self.gradients)

    @cached_property
    def _schedules(self) -> dict[tuple[Value, ...], Schedule]:
        """Schedules by the values of `SCHEDULED`."""
        return {}

    @cached_property
    def _targets(self) -> Array:
        """Which part of a step each piece multiplies: (pieces, targets) of 0 and 1."""
        matrix = np.zeros((len(self.pieces), len(Target)))
        for row, piece in enumerate(self.pieces):
            matrix[row, piece.target] = 1.0
        return matrix

    @property
    def _jitter_growth(self) -> float:
        """The most of p normal waits grows with sqrt(2 ln p)."""
        return math.sqrt(math.log(max(2, self.shape.world)) / math.log(max(2, self.jitter_ranks)))

    def _factors(self, rows: Rows, sets: Array, shifts: Array | None) -> list[Array]:
        logs = (sets[:, None, _PHYSICAL:] * rows.weights[None]) @ self._targets
        if shifts is not None:
            logs = logs + shifts[:, None, :]
        factors = np.exp(np.clip(logs, -3.0, 3.0))
        return [factors[:, :, target] for target in Target]

    def _costs(self, sets: Array) -> Costs:
        return Costs(
            hop_s=_scale(sets, Unknown.HOP),
            inner_hop_s=_scale(sets, Unknown.INNER_HOP),
            wire_s=_scale(sets, Unknown.WIRE),
            inner_wire_s=_scale(sets, Unknown.INNER_WIRE),
            handling_s=_scale(sets, Unknown.HANDLING),
            inner_handling_s=_scale(sets, Unknown.INNER_HANDLING),
            message_s=_scale(sets, Unknown.MESSAGE),
            copy_s=_scale(sets, Unknown.COPY),
            stolen=_scale(sets, Unknown.STOLEN),
            bend=_scale(sets, Unknown.BEND),
            burst_s=self.burst_s,
        )

    def _read(self, rows: Rows, sets: Array, compute: Array, slower: Array) -> Array:
        """Add reading: in the training process it takes its time, beside it the slower of both sets the pace."""
        if not self.probe.has_loader:
            return compute + self.probe.wait_s
        reading, dearer = _scale(sets, Unknown.READING) * slower, _scale(sets, Unknown.READER)
        beside = reading * dearer / np.maximum(rows.workers, 1.0)
        step: Array = np.where(rows.workers > 0, _slower_of(compute, beside), compute + reading)
        return step


def _scale(sets: Array, unknown: Unknown) -> Array:
    column: Array = np.exp(sets[:, unknown])[:, None]
    return column


def _slower_of(first: Array, second: Array) -> Array:
    slower: Array = (first**_SHARPNESS + second**_SHARPNESS) ** (1.0 / _SHARPNESS)
    return slower
