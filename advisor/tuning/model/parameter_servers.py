"""What a step with parameter servers costs: compute, push and pull, each the most bytes on any link over its rate.

Links are full duplex, one a node; what stays on a node costs no link. docs/cost-model.md says what it was held against.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.protocol.training.parameter_servers import (
    TABLE,
    Architecture,
    Mode,
    ParameterServers,
    ServerPlace,
    TableKind,
    Variable,
)
from advisor.tuning.model.collectives import flat_ring
from advisor.tuning.model.placement import share_out

_ID_BYTES = 8
_NUMBER_BYTES = 4
"""Of a number in memory, whatever travels."""
_SLOWNESS_SPREAD = 0.05
"""How far a link's seconds per byte may lie from its rate's, as a share: headers, bursts, streams that meet."""
_MISS = 0.05
"""Relative error of a predicted step that counts as one standard deviation."""
_IMAGINED, _IMAGINED_MISS = 2, 0.1
"""Misses that are imagined before anything is predicted: a model of one constant is off by up to 10 %."""


@dataclass(frozen=True)
class Traffic:
    """The most bytes on any link in each phase of a step; phases follow one another."""

    fetch: float
    """Ids to the servers, and their rows back."""
    push_rows: float
    """Rows' gradients and ids to the servers."""
    exchange: float
    """Dense gradients to the servers, then values back."""
    reduce: float
    """Through a ring of trainers."""
    busiest: float
    """The most bytes in one direction of one link in the whole step: what bounds trainers that do not wait."""
    alone: float
    """A trainer's own bytes, one after the other: what bounds it on links of its own."""
    largest_share: float | None
    """Of the dense elements, on the fullest server; None where servers hold none."""


@dataclass(frozen=True)
class _Way:
    """Bytes between trainers and servers of other nodes, by node: the way back has as many."""

    trainers: Mapping[int, float]
    """Over the links of trainers."""
    servers: Mapping[int, float]
    """Over the links of servers."""

    @property
    def most(self) -> float:
        return max([*self.trainers.values(), *self.servers.values()], default=0.0)


def lay_out(job: ParameterServers) -> ParameterServers:
    """Return the same with `servers` servers where `place` says: in turn on the nodes without trainers, or with them.

    Where `nodes` leaves none without trainers, servers that stand apart are with them, too.
    """
    if job.architecture is Architecture.COLLECTIVE:
        return job.model_copy(update={"server_nodes": ()})
    homes = list(dict.fromkeys(job.trainer_nodes))
    if job.place is ServerPlace.APART:
        apart = [n for n in range(job.nodes or max(homes) + 1 + job.servers) if n not in homes]
        homes = apart or homes
    return job.model_copy(update={"server_nodes": tuple(homes[i % len(homes)] for i in range(job.servers))})


def find_traffic(job: ParameterServers) -> Traffic:
    """Return what a step moves; a table's rows lie evenly on the servers, as `id % servers` does."""
    as_rows, homes = job.table is TableKind.ROWS and job.table_rows > 0, job.server_nodes
    dense, number = _list_dense(job), job.wire / 8
    elements = sum(variable[1] for variable in dense)
    # Who sends: every trainer, or one of each node for all of it.
    on_node = Counter(job.trainer_nodes)
    senders = dict.fromkeys(on_node, 1) if job.reduce_in_node else dict(on_node)
    count = sum(senders.values())
    held = _share_dense(job)
    touched: dict[int, float] = {}
    if as_rows and homes:
        each = {node: job.rows_per_step * on_node[node] / sent for node, sent in senders.items()}
        touched = {node: sent * min(each[node], float(job.table_rows)) for node, sent in senders.items()}
    exchanged = _meet(senders, homes, [part * number for part in held])
    rows = _meet(touched, homes, [1.0 / max(1, len(homes))] * len(homes))
    row = job.table_width * number
    reduced = 0.0
    if job.architecture is not Architecture.SERVERS:
        reduced = flat_ring(count, len(on_node), lockstep=True).wire * elements * number
    if job.architecture is Architecture.COLLECTIVE and as_rows and len(on_node) > 1:
        # Everybody's rows and ids reach everybody: an allgather.
        reduced += (len(job.trainer_nodes) - 1) * job.rows_per_step * (row + _ID_BYTES)
    both = [
        exchanged.trainers.get(node, 0.0)
        + exchanged.servers.get(node, 0.0)
        + rows.trainers.get(node, 0.0) * there
        + rows.servers.get(node, 0.0) * back
        for node in {*on_node, *homes}
        for there, back in ((row + 2 * _ID_BYTES, row), (row, row + 2 * _ID_BYTES))
    ]
    own = 2.0 * sum(exchanged.trainers.values()) + 2.0 * sum(rows.trainers.values()) * (row + _ID_BYTES)
    return Traffic(
        fetch=rows.most * (row + _ID_BYTES),
        push_rows=rows.most * (row + _ID_BYTES),
        exchange=2.0 * exchanged.most,
        reduce=reduced,
        busiest=max(both),
        alone=own / count,
        largest_share=max(held) / elements if held and elements else None,
    )


def find_node_bytes(job: ParameterServers) -> float:
    """Return the memory that the fullest node needs at least: values, and a trainer's own dense gradients.

    What an optimizer keeps, activations, and the processes themselves come on top.
    """
    table = job.table_rows * job.table_width * _NUMBER_BYTES
    dense = sum(variable[1] for variable in _list_dense(job)) * _NUMBER_BYTES
    rows = table if job.table is TableKind.ROWS else 0
    trainer = 2.0 * dense + (rows if job.architecture is Architecture.COLLECTIVE else 0)
    needed: defaultdict[int, float] = defaultdict(float)
    for node in job.trainer_nodes:
        needed[node] += trainer
    held = _share_dense(job) or (0,) * len(job.server_nodes)
    for node, elements in zip(job.server_nodes, held, strict=True):
        needed[node] += elements * _NUMBER_BYTES + rows / len(held)
    return max(needed.values())


def _list_dense(job: ParameterServers) -> tuple[Variable, ...]:
    """The variables that travel whole."""
    if job.table is TableKind.ROWS or not job.table_rows:
        return job.variables
    return (*job.variables, (TABLE, job.table_rows * job.table_width, job.table_width))


def _share_dense(job: ParameterServers) -> tuple[int, ...]:
    """Dense elements on each server; nothing where servers hold none."""
    if job.architecture is not Architecture.SERVERS or not job.server_nodes:
        return ()
    return share_out(_list_dense(job), len(job.server_nodes), job.min_block, job.placement)


@dataclass(frozen=True)
class ServerModel:
    """What was fitted of one training: the rest is arithmetic."""

    bytes_per_s: float
    """What a node's link carries in each direction."""
    overhead_s: float = 0.0
    """Of an exchange, beyond bytes and computing: calls, copies, waiting for each other."""
    slowness: float = 1.0
    """Seconds on a link over what its rate would take."""
    residual: float = _IMAGINED_MISS
    """Root mean square of ln(predicted / measured), as `CostModel.residual`."""

    def predict_step_s(self, job: ParameterServers) -> float:
        """Return the predicted seconds of a step, in which each trainer computes one batch."""
        compute_s, wire_s, exchanges = _split(job, self.bytes_per_s)
        return compute_s + wire_s * self.slowness + self.overhead_s * exchanges

    def predict_silent_step_s(self, job: ParameterServers) -> float:
        """Return the same over links that take no time."""
        compute_s, _, exchanges = _split(job, self.bytes_per_s)
        return compute_s + self.overhead_s * exchanges


def fit(measured: Sequence[tuple[ParameterServers, float]], bytes_per_s: float) -> ServerModel:
    """Return the most probable overhead and slowness of links given at least one setup with its step time in seconds.

    Least squares of relative errors with a prior on slowness, so that one setup tells the overhead alone.
    """
    parts = [(*_split(job, bytes_per_s), seconds) for job, seconds in measured]
    rows = [(exchanges / s / _MISS, wire_s / s / _MISS) for _, wire_s, exchanges, s in parts]
    wanted = [(s - compute_s) / s / _MISS for compute_s, _, _, s in parts]
    matrix = np.array([*rows, (0.0, 1.0 / _SLOWNESS_SPREAD)])
    right = np.array([*wanted, 1.0 / _SLOWNESS_SPREAD])
    overhead_s, slowness = (float(found) for found in np.linalg.lstsq(matrix, right, rcond=None)[0])
    if overhead_s < 0.0:
        column = matrix[:, 1]
        overhead_s, slowness = 0.0, float(column @ right / (column @ column))
    model = ServerModel(bytes_per_s, overhead_s, slowness)
    squares = sum(math.log(model.predict_step_s(job) / seconds) ** 2 for job, seconds in measured)
    # A single setup fits its own overhead: it says nothing about how good the model is.
    freedom = _IMAGINED + len(measured) - 1
    residual = math.sqrt((_IMAGINED * _IMAGINED_MISS**2 + squares) / freedom)
    return ServerModel(bytes_per_s, overhead_s, slowness, residual)


def _split(job: ParameterServers, bytes_per_s: float) -> tuple[float, float, float]:
    """Return a step's seconds of computing, its seconds on links, and the exchanges in it."""
    traffic = find_traffic(job)
    fetch_s, rows_s = traffic.fetch / bytes_per_s, traffic.push_rows / bytes_per_s
    dense_s = (traffic.exchange + traffic.reduce) / bytes_per_s
    if job.mode is Mode.ASYNC:
        # Bounds of a closed network of queues (Denning and Buzen 1978): a trainer takes its own turn at least, and the
        # busiest link passes everybody's bytes.
        busiest_s = traffic.busiest / bytes_per_s - job.compute_s
        return job.compute_s, max(traffic.alone / bytes_per_s, busiest_s), 1.0
    exchanges = 1.0 / job.geo_k if job.mode is Mode.GEO else 1.0
    dense_s *= exchanges
    if job.prefetch:
        # Fetched during the step before: only what outlasts it is waited for.
        fetch_s = max(0.0, fetch_s - job.compute_s - dense_s)
    return job.compute_s, fetch_s + rows_s + dense_s, exchanges


def _meet(senders: Mapping[int, float], homes: Sequence[int], sizes: Sequence[float]) -> _Way:
    """Return what crosses links when each of a node's senders exchanges with each server the bytes of `sizes`."""
    held: defaultdict[int, float] = defaultdict(float)
    for home, size in zip(homes, sizes, strict=False):
        held[home] += size
    count, whole = sum(senders.values()), sum(held.values())
    return _Way(
        trainers={node: sent * (whole - held.get(node, 0.0)) for node, sent in senders.items()},
        servers={node: size * (count - senders.get(node, 0.0)) for node, size in held.items()},
    )
