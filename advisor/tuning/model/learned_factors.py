"""What knobs without physics do to a step: learnt from observations, with priors that expect nothing."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.kinds import Part
from advisor.protocol.knobs.knob import Knob, KnobContext
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.model.timeline import Array


class Target(IntEnum):
    """The part of a step that an effect multiplies."""

    COMPUTATION = 0
    OPTIMIZER = 1
    COMMUNICATION = 2
    READING = 3
    STEP = 4
    HANDLING = 5
    """What each stream of a reduction does for itself, before all share the link."""


_TARGETS: Mapping[Part, Target] = {
    Part.COMPUTATION: Target.COMPUTATION,
    Part.OPTIMIZER: Target.OPTIMIZER,
    Part.COMMUNICATION: Target.COMMUNICATION,
    Part.BUFFERS: Target.STEP,
    Part.INPUT: Target.READING,
    Part.STEP: Target.STEP,
}
_SPREADS: Mapping[Target, float] = {
    Target.COMPUTATION: 0.15,
    Target.OPTIMIZER: 0.4,
    Target.COMMUNICATION: 0.2,
    Target.READING: 0.3,
    Target.STEP: 0.1,
    Target.HANDLING: 0.3,
}
"""Prior standard deviations of ln(effect)."""
_OTHERS: Mapping[str, float] = {
    "num_threads": 0.5,
    "amp": 0.4,
    "amp_dtype": 0.3,
    "dgc": 0.5,
    "num_iteration_per_drop_scope": 0.03,
    "num_iteration_per_run": 0.04,
    "loader_num_workers": 0.06,
    "batched_grad_copy": 0.02,
    "numa_binding": 0.05,
    "find_unused_parameters": 0.05,
    "defer_gradient_sync": 0.5,
    "activation_checkpointing": 0.3,
}
"""Other spreads than the target's; a number's is per doubling."""
_THREADS_BESIDE_A_GPU = 0.05
"""Prior standard deviation of ln(effect) of a doubling of threads, where a GPU computes."""
_BY_THE_MODEL: Mapping[str, float] = {
    "fuse_all_reduce_ops": 0.05,
    "fuse_grad_size_in_MB": 0.0,
    "last_comm_group_size_MB": 0.0,
    "fuse_grad_size_in_TFLOPS": 0.0,
    "bucket_cap_mb_list": 0.0,
    "hierarchical_allreduce_inter_nranks": 0.05,
    "use_hierarchical_allreduce": 0.3,
    "nccl_comm_num": 0.08,
    "sync_nccl_allreduce": 0.05,
    "fp16_allreduce": 0.2,
    "fp16_allreduce_dtype": 0.15,
    "localsgd": 0.04,
    "localsgd_k_steps": 0.0,
    "localsgd_begin_step": 0.0,
    "adaptive_localsgd": 0.08,
    "adaptive_localsgd_init_k_steps": 0.0,
    "adaptive_localsgd_begin_step": 0.0,
    "gradient_merge": 0.05,
    "gradient_merge_k_steps": 0.0,
    "gradient_merge_avg": 0.0,
    "dgc_rank": 0.3,
}
"""Knobs whose effect the timeline computes, with the spread of what it may have missed; 0 trusts it."""
_OTHER_TARGETS: Mapping[str, Target] = {
    "localsgd": Target.STEP,
    "adaptive_localsgd": Target.STEP,
    "gradient_merge": Target.STEP,
    "amp": Target.COMPUTATION,
    "amp_dtype": Target.COMPUTATION,
    "sync_batch_norm": Target.COMPUTATION,
    "loader_num_workers": Target.STEP,
    "batch_size_multiple": Target.COMPUTATION,
    "micro_batches": Target.COMPUTATION,
    "batched_grad_copy": Target.COMPUTATION,
    "find_unused_parameters": Target.STEP,
    "NCCL_SOCKET_NTHREADS": Target.HANDLING,
    "NCCL_NSOCKS_PERTHREAD": Target.HANDLING,
    "NCCL_BUFFSIZE": Target.HANDLING,
    "NCCL_MIN_CTAS": Target.HANDLING,
    "NCCL_MAX_CTAS": Target.HANDLING,
    "NCCL_CGA_CLUSTER_SIZE": Target.HANDLING,
}
_HALF_ON_GPU = math.log(0.65)
"""Expected effect of 16-bit arithmetic on a GPU's computation."""


@dataclass(frozen=True)
class Piece:
    """An unknown that effects are made of: a knob's change between two neighbouring values, as a logarithm."""

    knob: str
    low: Value
    high: Value
    target: Target
    mean: float
    spread: float


def name_pieces(context: KnobContext, strategies: Sequence[Mapping[str, Value]]) -> tuple[Piece, ...]:
    """Return the unknowns that measured strategies tell something about.

    A number's effect is a walk along its values from the baseline's: neighbours are expected to be alike. Every
    other value has an effect of its own.
    """
    pieces: list[Piece] = []
    on_gpu = context.facts.device is DeviceKind.CUDA
    for name, knob in context.catalogue.items():
        base = context.baseline[name]
        seen = {values[name] for values in strategies if is_active(knob, values, base)}
        spread = _spread_of(knob, context)
        if name == "amp" and on_gpu and not base:
            seen.add(True)  # its effect is expected before anything is measured
        if not seen or spread <= 0:
            continue
        target = _target_of(knob)
        mean = _HALF_ON_GPU if name == "amp" and on_gpu else 0.0
        if _is_walk(knob):
            stations = sorted({_number(base), *(_number(value) for value in seen)})
            for low, high in itertools.pairwise(stations):
                length = math.sqrt(abs(_place(knob, high) - _place(knob, low)))
                pieces.append(Piece(name, low, high, target, 0.0, spread * length))
        else:
            pieces += [Piece(name, base, value, target, mean, spread) for value in sorted(seen, key=str)]
    return tuple(pieces)


def weigh_pieces(
    pieces: Sequence[Piece], context: KnobContext, strategies: Sequence[Mapping[str, Value]]
) -> Array:
    """Return how much of each piece (column) each strategy has: 1, or a part of it between two measured values."""
    weights = np.zeros((len(strategies), len(pieces)))
    columns: dict[str, list[int]] = {}
    for column, piece in enumerate(pieces):
        columns.setdefault(piece.knob, []).append(column)
    known: dict[tuple[str, Value], list[float]] = {}
    for name, own in columns.items():
        knob, base = context.catalogue[name], context.baseline[name]
        rows: list[int] = []
        cells: list[list[float]] = []
        for row, values in enumerate(strategies):
            value = values[name]
            if value != base and knob.inactive_because(values) is None:
                if (name, value) not in known:
                    known[name, value] = [_weigh(knob, pieces[column], value, base) for column in own]
                rows.append(row)
                cells.append(known[name, value])
        if rows:
            weights[np.ix_(rows, own)] = cells
    return weights


def _weigh(knob: Knob, piece: Piece, value: Value, base: Value) -> float:
    if not _is_walk(knob):
        return 1.0 if value == piece.high else 0.0
    start, end = _place(knob, piece.low), _place(knob, piece.high)
    share, without = ((_place(knob, at) - start) / (end - start) for at in (value, base))
    return min(1.0, max(0.0, share)) - min(1.0, max(0.0, without))


def is_active(knob: Knob, values: Mapping[str, Value], base: Value) -> bool:
    """Whether a strategy changes the knob, and nothing makes that idle."""
    return values[knob.name] != base and not knob.carried and knob.inactive_because(values) is None


def _spread_of(knob: Knob, context: KnobContext) -> float:
    if knob.carried:
        return 0.0
    if knob.name in _BY_THE_MODEL:
        return _BY_THE_MODEL[knob.name] if context.facts.world_size > 1 else 0.0
    if knob.name == "num_threads" and context.facts.device is DeviceKind.CUDA:
        return _THREADS_BESIDE_A_GPU
    return _OTHERS.get(knob.name, _SPREADS[_target_of(knob)])


def _target_of(knob: Knob) -> Target:
    return _OTHER_TARGETS.get(knob.name, _TARGETS[knob.part])


def _is_walk(knob: Knob) -> bool:
    return knob.kind in (int, float)


def _number(value: Value) -> float:
    return float(value)


def _place(knob: Knob, value: Value) -> float:
    """A number's place in doublings; knobs that begin at 0 are moved by one."""
    return math.log2(max(float(value) + (1.0 if not knob.low else 0.0), 1e-6))
