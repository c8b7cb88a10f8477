"""How a strategy exchanges gradients: its buckets, levels, channels and interval, from the knobs' values."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import INTERVALS, period_of
from advisor.protocol.measured.results import Calibration
from advisor.protocol.measured.trials import Block
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.model.collectives import Shape, Traffic, flat, hierarchical
from advisor.tuning.model.timeline import MIB, Entries, Gradient, Line, Plan, Schedule

GLOO_THREADS = 2
"""Collectives that a gloo process group carries out at once."""
_AVERAGING_BYTES = 25 * MIB
"""Parameters are averaged in chunks of that size (local SGD)."""
_MOST_PLANS = 64
"""Different bucket plans whose logs are read at most, the first ones: their edges hardly add any after a few."""
_ALONE = 0.9
"""A log with that share of the tensors as buckets lists them one by one."""


LISTED, SEARCH = "bucket_cap_mb_list", "find_unused_parameters"
SCHEDULED = (
    "fuse_all_reduce_ops", "fuse_grad_size_in_MB", "last_comm_group_size_MB", "fuse_grad_size_in_TFLOPS",
    LISTED, SEARCH,
    "nccl_comm_num", "sync_nccl_allreduce", "use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks",
    "fp16_allreduce", "dgc", "dgc_rank", *itertools.chain.from_iterable(INTERVALS.items()),
)  # fmt: skip
"""Every knob that `schedule_of` reads: strategies that agree in them have one schedule."""


def shape_of(facts: WorkloadFacts) -> Shape:
    """Return where the job's ranks sit."""
    is_gloo = "nccl" not in facts.backend
    return Shape(
        world=max(1, facts.world_size),
        local=max(1, facts.local_world_size),
        nodes=max(1, facts.nodes),
        lockstep=is_gloo,
        scatters=not is_gloo,
    )


def find_gradients(facts: WorkloadFacts, blocks: Sequence[Block]) -> tuple[Gradient, ...]:
    """Return the gradients in the order of backward.

    As a calibrating block timed them; else from the bucket sizes in DDP's logs, whose edges are edges of gradients
    too. What lies between two known edges is taken as equal tensors, but for the largest one.
    """
    calibration = find_timed(facts, blocks)
    if calibration is not None:
        timed = calibration.gradients
        last = max(max(g.ready_s for g in timed), 1e-9)
        layers = max(1, facts.layers)
        return tuple(
            Gradient(float(g.bytes), min(1.0, g.ready_s / last), place * layers // len(timed))
            for place, g in enumerate(timed)
        )
    sizes = _split_evenly(facts, _known_segments(facts, blocks))
    total, held = sum(sizes), 0.0
    gradients: list[Gradient] = []
    for place, size in enumerate(sizes):
        held += size
        ready = (held / total + (place + 1) / len(sizes)) / 2.0
        gradients.append(Gradient(size, ready, place * max(1, facts.layers) // len(sizes)))
    return tuple(gradients)


def find_timed(facts: WorkloadFacts, blocks: Iterable[Block]) -> Calibration | None:
    """Return what a calibrating block measured, where it timed all gradients; None without one."""
    for block in blocks:
        found = block.result.calibration if block.result else None
        timed = sum(g.bytes for g in found.gradients) if found else 0
        if timed and abs(timed - facts.gradient_bytes) < 0.02 * facts.gradient_bytes:
            return found
    return None


def _known_segments(facts: WorkloadFacts, blocks: Sequence[Block]) -> tuple[list[float], bool]:
    """Sizes between the edges that all logs together show, and whether they are single tensors."""
    edges, alone = {0, facts.gradient_bytes}, False
    plans = dict.fromkeys(tuple(block.result.bucket_bytes) for block in blocks if block.result)
    for logged in itertools.islice(plans, _MOST_PLANS):
        if not logged or abs(sum(logged) - facts.gradient_bytes) > 0.01 * facts.gradient_bytes:
            continue
        alone = alone or len(logged) >= _ALONE * facts.parameter_tensors
        edge = 0
        for size in logged[:-1]:
            edge += size
            edges.add(min(edge, facts.gradient_bytes))
    ordered = sorted(edges)
    return [float(high - low) for low, high in itertools.pairwise(ordered)], alone


def _split_evenly(facts: WorkloadFacts, known: tuple[list[float], bool]) -> list[float]:
    segments, alone = known
    if alone:
        return segments
    largest, tensors = float(facts.largest_parameter_bytes), max(1, facts.parameter_tensors)
    holder = max((i for i, size in enumerate(segments) if size >= largest > 0), default=None)
    rest = sum(segments) - (largest if holder is not None else 0.0)
    usual = max(1.0, rest / max(1, tensors - (holder is not None)))
    sizes: list[float] = []
    for place, segment in enumerate(segments):
        left = segment - (largest if place == holder else 0.0)
        if left > 0:
            count = max(1, round(left / usual))
            sizes += [left / count] * count
        if place == holder:
            sizes.append(largest)
    return sizes


def schedule_of(
    values: Mapping[str, Value],
    baseline: Mapping[str, Value],
    facts: WorkloadFacts,
    shape: Shape,
    line: Line,
) -> Schedule:
    """Return how a strategy (a value of every knob) exchanges gradients over ranks that sit as `shape` says."""
    interval = period_of(values)
    if shape.world < 2 or not line.gradients:
        return Schedule(
            entries=np.zeros((0, 3)),
            traffic=Traffic(),
            interval=interval,
            merges=bool(values["gradient_merge"]),
        )
    if values["localsgd"] or values["adaptive_localsgd"]:
        return _averaging(sum(g.bytes for g in line.gradients), shape, interval)
    plan = plan_of(values, baseline, facts)
    entries = line.form_buckets(plan) if plan else line.alone
    if values["dgc"]:
        return _low_rank(entries, facts, shape, int(values["dgc_rank"]))
    traffic, channels = flat(shape), 1
    in_lanes = bool(values["sync_nccl_allreduce"])
    if values["use_hierarchical_allreduce"]:
        traffic, in_lanes = hierarchical(shape, int(values["hierarchical_allreduce_inter_nranks"])), True
    communicators = max(1, int(values["nccl_comm_num"]))
    if not values["sync_nccl_allreduce"]:
        channels = communicators
        # gloo works on several collectives of one group at once, unless a thread of our own hands them over.
        channels *= 1 if in_lanes or not shape.lockstep else GLOO_THREADS
    copied = 0.0
    if values["fp16_allreduce"] and facts.gradient_dtype not in {"float16", "bfloat16"}:
        traffic, copied = traffic.of_part(0.5), 1.0
    return Schedule(
        entries=entries,
        traffic=traffic,
        channels=channels,
        copied=copied,
        interval=interval,
        merges=bool(values["gradient_merge"]),
    )


def plan_of(values: Mapping[str, Value], baseline: Mapping[str, Value], facts: WorkloadFacts) -> Plan | None:
    """Return how a strategy's buckets close; None where every gradient travels alone."""
    if not values["fuse_all_reduce_ops"]:
        return None
    limit, unlimited = float(values["fuse_grad_size_in_TFLOPS"]), float(baseline["fuse_grad_size_in_TFLOPS"])
    most_layers = int(limit) if limit < unlimited and not values[LISTED] else 0
    return Plan(list_caps(values), most_layers, keeps_definition(values, facts))


def keeps_definition(values: Mapping[str, Value], facts: WorkloadFacts) -> bool:
    """Whether DDP's buckets stay as its parameters were defined: it deals none anew where it searches in every step."""
    return bool(values[SEARCH]) and not facts.ddp.static_graph


def list_caps(values: Mapping[str, Value]) -> tuple[float, ...]:
    """Return the bytes at which a strategy's buckets close, in the order in which DDP cuts them; the last is for all
    further ones. That is the order of their allreduces, but for `keeps_definition`, where it is the reverse."""
    if not values["fuse_all_reduce_ops"]:
        return (1.0,)
    if values[LISTED]:
        return tuple(float(size) * MIB for size in str(values[LISTED]).split("+"))
    cap = float(values["fuse_grad_size_in_MB"]) * MIB
    return min(cap, float(values["last_comm_group_size_MB"]) * MIB), cap


def _averaging(parameter_bytes: float, shape: Shape, interval: int) -> Schedule:
    """Parameters averaged after the step: nothing overlaps, chunk after chunk, copied there and back."""
    chunks = max(1, math.ceil(parameter_bytes / _AVERAGING_BYTES))
    return Schedule(
        entries=np.array([[parameter_bytes, float(chunks), 1.0]]),
        traffic=flat(shape),
        copied=2.0,
        interval=interval,
    )


def _low_rank(entries: Entries, facts: WorkloadFacts, shape: Shape, rank: int) -> Schedule:
    """PowerSGD: a matrix of n × m numbers is sent as (n + m) × rank of them (Vogels et al., arXiv 1905.13727).

    Shapes are not known: every second tensor counts as a square matrix, the others as small vectors. A bucket's
    reduction waits for three collectives (vectors, left factors, right factors), one bucket after another on gloo.
    """
    total = float(entries[:, 0].sum())
    matrices = max(1, facts.parameter_tensors // 2)
    numbers = total / 4.0 / matrices
    share = min(1.0, 2.0 * math.sqrt(numbers) * rank / max(1.0, numbers))
    return Schedule(
        entries=entries,
        traffic=flat(shape).of_part(share),
        channels=1 if shape.lockstep else 2,
        copied=2.0 + rank,
        messages_of=3.0,
    )
