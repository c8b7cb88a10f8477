"""A discrete-event simulation of one data-parallel training step, for surfaces that no testbed here can record.

Written apart from the advisor's cost model, and more detailed: gradients become ready layer by layer, buckets fill
in that order, each communicator serves its buckets one after another, collectives in flight share links whose single
streams cannot fill them, communication slows the computation beside it, the slowest rank is waited for, a loader hands
batches over, the host queues kernels ahead of the device. Times in seconds, sizes in bytes, rates in bytes/s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MB = 2**20
_TINY = 1e-12


@dataclass(frozen=True)
class Link:
    """One level of the network: what a node (or a GPU inside one) sends through."""

    hop_s: float
    """Time per hop of a ring."""
    rate: float
    """Of the whole link."""
    stream_share: float = 1.0
    """Share of the link that the collectives of one communicator can fill."""


@dataclass(frozen=True)
class Machine:
    """The cluster."""

    nodes: int
    ranks_per_node: int
    inside: Link
    between: Link
    memory_rate: float = 1.2e12
    """Of the device's memory: packing, converting, updating."""
    launch_s: float = 6e-6
    """Of one kernel or collective, on the host."""
    contention: float = 0.06
    """Share of the computation's speed that communication beside it takes, for one communicator."""
    jitter: float = 0.02
    """Standard deviation of a rank's own time in a step: what the slowest rank costs."""
    memory: float = 32 * 2**30
    cpus: int = 32
    tcp: bool = False
    """Whether NCCL's socket knobs matter."""

    @property
    def world(self) -> int:
        """Ranks."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Training:
    """The workload: its gradients in the order in which backward produces them, and what its parts take."""

    gradients: tuple[tuple[float, float], ...]
    """Size, and share of the backward pass before it is ready."""
    forward_s: float
    backward_s: float
    kernels: int
    """Launched per forward and backward pass."""
    amp_gain: float = 2.0
    """How much faster 16 bits compute; 1 where nothing is gained."""
    read_s: float = 0.0
    """What one loader worker takes for a batch."""
    activations: float = 0.0
    optimizer_kernels: int = 4
    """Per tensor, unfused."""
    collect_s: float = 0.003
    """One collection of Python's garbage."""

    @property
    def size(self) -> float:
        """Bytes of all gradients."""
        return sum(size for size, _ in self.gradients)


@dataclass(frozen=True)
class Step:
    """Where the time of a step goes, averaged over the period of the strategy."""

    data_wait_s: float
    forward_s: float
    backward_s: float
    exposed_comm_s: float
    optimizer_s: float
    own_code_s: float
    buckets: tuple[int, ...]
    memory: float

    @property
    def total_s(self) -> float:
        """The whole step."""
        parts = (
            self.data_wait_s,
            self.forward_s,
            self.backward_s,
            self.exposed_comm_s,
            self.optimizer_s,
            self.own_code_s,
        )
        return sum(parts)


@dataclass
class _Collective:
    """One bucket's reduction under way."""

    queue: int
    stages: list[tuple[bool, float, float]]
    """Between nodes?, seconds of latency, bytes."""
    latency_s: float = 0.0
    bytes_left: float = 0.0

    def next_stage(self) -> bool:
        """Enter the next stage; False at the end."""
        if not self.stages:
            return False
        self.between, self.latency_s, self.bytes_left = self.stages.pop(0)
        return True


def simulate_step(machine: Machine, training: Training, values: Mapping[str, Any]) -> Step:
    """Return the step of a full strategy; memory may exceed the machine's, which is for the caller to judge."""
    speed = training.amp_gain if values["amp"] else 1.0
    forward, backward = training.forward_s / speed, training.backward_s / speed
    merged = int(values["gradient_merge_k_steps"]) if values["gradient_merge"] else 1
    local = int(values["localsgd_k_steps"]) if values["localsgd"] else 1
    buckets = fill_buckets(training, values)
    if local > 1:
        exchange = _reduce_alone(machine, training.size, values)
        exposed, slowed = exchange / local, 0.0
    else:
        end, slowed = _overlap(machine, values, buckets, backward)
        exposed, slowed = (end - backward - slowed) / merged, slowed / merged
    optimizer = _update(machine, training, values) / merged
    spread = machine.jitter / math.sqrt(local) * math.sqrt(2.0 * math.log(max(machine.world, 2)))
    waiting = spread * (forward + backward)
    busy = forward + backward + slowed + exposed + optimizer + waiting
    host = _host(machine, training, values, len(buckets) / merged)
    other = max(0.0, host - busy) + _housekeeping(training, values, machine)
    hidden = busy + other if values["loader_num_workers"] else 0.0
    data_wait = max(0.0, _read(machine, training, values) - hidden) + 0.0004
    return Step(
        data_wait, forward, backward + slowed, exposed + waiting, optimizer, other,
        tuple(int(sum(size for size, _ in bucket)) for bucket in buckets), _memory(training, values, buckets),
    )  # fmt: skip


def fill_buckets(training: Training, values: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """Return the gradients bucket by bucket: a bucket is sent once it holds its size or more."""
    if not values["fuse_all_reduce_ops"]:
        return [[gradient] for gradient in training.gradients]
    limits = [float(values["last_comm_group_size_MB"]) * MB, float(values["fuse_grad_size_in_MB"]) * MB]
    buckets: list[list[tuple[float, float]]] = []
    held: list[tuple[float, float]] = []
    for gradient in training.gradients:
        held.append(gradient)
        if sum(size for size, _ in held) >= limits[min(len(buckets), 1)]:
            buckets.append(held)
            held = []
    return buckets + ([held] if held else [])


def time_allreduce(machine: Machine, size: float, concurrent: int = 1, level: str = "world") -> float:
    """Return how long `concurrent` allreduces of that size take side by side with nothing else going on."""
    spot = machine
    if level == "node":
        spot = replace(machine, nodes=1)
    elif level == "across":
        spot = replace(machine, ranks_per_node=1)
    flying = [_Collective(i, _stages(spot, size, hierarchical=0)) for i in range(concurrent)]
    for collective in flying:
        collective.next_stage()
    return _drain(spot, flying, 1.0)


def _overlap(
    machine: Machine,
    values: Mapping[str, Any],
    buckets: Sequence[Sequence[tuple[float, float]]],
    backward: float,
) -> tuple[float, float]:
    """Return when backward and all collectives are over, and by how much communication slowed backward down."""
    queues = 1 if values["sync_nccl_allreduce"] else int(values["nccl_comm_num"])
    inner = int(values["hierarchical_allreduce_inter_nranks"]) if values["use_hierarchical_allreduce"] else 0
    half = bool(values["fp16_allreduce"])
    ready = [
        (max(share for _, share in bucket) * backward, sum(size for size, _ in bucket)) for bucket in buckets
    ]
    waiting: list[list[_Collective]] = [[] for _ in range(queues)]
    flying: list[_Collective] = []
    now = done = backward_end = 0.0
    sent = 0
    boost = _stream_boost(machine, values)
    while sent < len(ready) or flying or any(waiting):
        for queue in waiting:
            if queue and not any(c.queue == queue[0].queue for c in flying):
                starting = queue.pop(0)
                starting.next_stage()
                flying.append(starting)
        pace = max(0.3, 1.0 - machine.contention * math.sqrt(len(flying))) if done < backward else 1.0
        events = [(ready[sent][0] - done) / pace] if sent < len(ready) else []
        rates = _share(machine, flying, boost)
        for collective, rate in zip(flying, rates, strict=True):
            left = collective.latency_s if collective.latency_s > 0 else collective.bytes_left / rate
            events.append(max(left, 0.0))
        delta = min(events)
        now += delta
        done = min(backward, done + delta * pace)
        for collective, rate in zip(list(flying), rates, strict=True):
            if collective.latency_s > 0:
                collective.latency_s = max(0.0, collective.latency_s - delta)
                continue
            collective.bytes_left -= rate * delta
        for collective in [c for c in flying if c.latency_s <= _TINY and c.bytes_left <= 1.0]:
            if not collective.next_stage():
                flying.remove(collective)
        while sent < len(ready) and ready[sent][0] <= done + _TINY:
            size = ready[sent][1] * (0.5 if half else 1.0)
            pack = machine.launch_s + ready[sent][1] * (3.0 if half else 2.0) / machine.memory_rate
            stages = [(False, pack, 0.0), *_stages(machine, size, inner)]
            waiting[sent % queues].append(_Collective(sent % queues, stages))
            sent += 1
            backward_end = now
    return now, backward_end - backward


def _stages(machine: Machine, size: float, hierarchical: int) -> list[tuple[bool, float, float]]:
    """Return the ring's stages; with `hierarchical` inner ranks: reduce-scatter inside, ring between, gather inside."""
    world, nodes = machine.world, machine.nodes
    if world < 2:
        return []
    if nodes == 1:
        hops = 2 * (world - 1)
        return [(False, hops * machine.inside.hop_s, 2.0 * size * (world - 1) / world)]
    if not hierarchical:
        crossing = 2 * (world - 1) * nodes / world
        hops = 2 * (world - 1) - crossing
        latency = crossing * machine.between.hop_s + hops * machine.inside.hop_s
        return [(True, latency, 2.0 * size * (world - 1) / world)]
    inner = hierarchical
    groups = world // inner
    crossing = 2.0 * (groups - 1) * min(1.0, nodes / groups)
    outer_latency = crossing * machine.between.hop_s + (2.0 * (groups - 1) - crossing) * machine.inside.hop_s
    # Inner groups that are larger than a node reduce over the network, too.
    wide = inner > machine.ranks_per_node
    inner_hop = machine.between.hop_s if wide else machine.inside.hop_s
    half = (wide, (inner - 1) * inner_hop, size * (inner - 1) / inner)
    outer = (
        True,
        outer_latency,
        2.0 * size * (groups - 1) / groups * (1.0 if inner >= machine.ranks_per_node else 1.1),
    )
    return [half, outer, half]


def _share(machine: Machine, flying: Sequence[_Collective], boost: float) -> list[float]:
    """Return the rate of each collective: links are shared equally, single streams are limited."""
    rates = []
    for collective in flying:
        link = machine.between if collective.between else machine.inside
        rivals = sum(c.between == collective.between and c.latency_s <= 0 for c in flying) or 1
        share = min(1.0, link.stream_share * (boost if collective.between else 1.0))
        rates.append(max(1.0, min(link.rate / rivals, link.rate * share)))
    return rates


def _stream_boost(machine: Machine, values: Mapping[str, Any]) -> float:
    """Several sockets fill a fast TCP link better, up to a point where the CPUs have enough of them."""
    if not machine.tcp:
        return 1.0
    threads, sockets = int(values["NCCL_SOCKET_NTHREADS"]), int(values["NCCL_NSOCKS_PERTHREAD"])
    streams = threads * sockets
    return streams**0.45 * (1.0 if streams <= 16 else (16 / streams) ** 0.5) * (0.97 if threads > 4 else 1.0)


def _drain(machine: Machine, flying: list[_Collective], boost: float) -> float:
    now = 0.0
    while flying:
        rates = _share(machine, flying, boost)
        delta = min(
            c.latency_s if c.latency_s > 0 else max(c.bytes_left, 0.0) / r
            for c, r in zip(flying, rates, strict=True)
        )
        now += delta
        for collective, rate in zip(list(flying), rates, strict=True):
            if collective.latency_s > 0:
                collective.latency_s = max(0.0, collective.latency_s - delta)
            else:
                collective.bytes_left -= rate * delta
            if collective.latency_s <= _TINY and collective.bytes_left <= 1.0 and not collective.next_stage():
                flying.remove(collective)
    return now


def _reduce_alone(machine: Machine, size: float, values: Mapping[str, Any]) -> float:
    """Parameters averaged with nothing beside it."""
    collective = _Collective(0, [(False, 2.0 * size / machine.memory_rate, 0.0), *_stages(machine, size, 0)])
    collective.next_stage()
    return _drain(machine, [collective], _stream_boost(machine, values))


def _update(machine: Machine, training: Training, values: Mapping[str, Any]) -> float:
    traffic = 5.0 * training.size / machine.memory_rate
    if values["fuse_all_optimizer_ops"]:
        return 1.15 * traffic + 12 * machine.launch_s
    return 1.3 * traffic + training.optimizer_kernels * len(training.gradients) * machine.launch_s


def _host(machine: Machine, training: Training, values: Mapping[str, Any], buckets: float) -> float:
    """Return what the host needs to queue a step; how far it may run ahead decides how much of that shows."""
    ahead = int(values["num_iteration_per_run"])
    kernels = training.kernels * (1.25 if values["amp"] else 1.0)
    fused = bool(values["fuse_all_optimizer_ops"])
    kernels += 12 if fused else training.optimizer_kernels * len(training.gradients)
    threads = int(values["num_threads"])
    crowd = (threads + int(values["loader_num_workers"])) * machine.ranks_per_node / machine.cpus
    pace = machine.launch_s * (1.0 + 0.25 * max(0.0, crowd - 1.0)) * (1.0 if threads > 1 else 1.04)
    return (kernels + 3.0 * buckets) * pace * (1.12 if ahead == 1 else 1.0) + (2e-4 if ahead == 1 else 0.0)


def _housekeeping(training: Training, values: Mapping[str, Any], machine: Machine) -> float:
    every = int(values["num_iteration_per_drop_scope"])
    # Python's own collector stops one rank here and another there, and all wait for each.
    return (
        training.collect_s
        * (0.5 * math.log2(max(machine.world, 2)) if every == 1 else 1.0 + 4.0 / every)
        / 2.0
    )


def _read(machine: Machine, training: Training, values: Mapping[str, Any]) -> float:
    """Return the seconds between two batches that the loader can keep up."""
    workers = int(values["loader_num_workers"])
    if not workers:
        return training.read_s
    free = max(1.0, machine.cpus / machine.ranks_per_node - 1.0)
    useful = min(workers, free) * (1.0 - 0.03 * max(0.0, workers - free))
    return training.read_s / max(0.5, useful) * (1.04 if int(values["loader_prefetch_factor"]) < 4 else 1.0)


def _memory(
    training: Training, values: Mapping[str, Any], buckets: Sequence[Sequence[tuple[float, float]]]
) -> float:
    state = 4.0 * training.size  # parameters, gradients, two moments
    state += training.size if values["gradient_merge"] else 0.0
    state += training.size if values["localsgd"] else 0.0
    largest = max((sum(size for size, _ in bucket) for bucket in buckets), default=0.0)
    buffers = largest * (1.5 if values["fp16_allreduce"] else 1.0) + training.size * 0.5
    buffers += int(values["nccl_comm_num"]) * 600 * MB
    ahead = 1.0 + 0.015 * min(int(values["num_iteration_per_run"]), 10)
    return state + buffers + training.activations * (0.6 if values["amp"] else 1.0) * ahead
