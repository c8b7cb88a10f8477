"""What an allreduce costs on α–β links: flat ring, two levels, and what each sends over which link."""

import math
from dataclasses import dataclass
from functools import lru_cache

_KEPT = 64
"""Shapes whose costs are kept: thousands of strategies of a job have the same few."""


@dataclass(frozen=True)
class Shape:
    """Where the ranks sit."""

    world: int
    """Ranks."""
    local: int
    """Ranks per node."""
    nodes: int
    lockstep: bool
    """Every hop of a ring waits for the slowest one (gloo); otherwise messages are pipelined (NCCL)."""
    scatters: bool
    """The inner level of a two-level allreduce is a reduce-scatter (NCCL), not a reduce to one leader (gloo)."""

    def on(self, nodes: int) -> "Shape":
        """Return the same ranks per node on another number of nodes."""
        return Shape(self.local * nodes, self.local, nodes, self.lockstep, self.scatters)


@dataclass(frozen=True)
class Traffic:
    """What one reduction of n bytes costs: counts of hops, and bytes moved as multiples of n."""

    hops: float = 0.0
    """Latencies between nodes, one after another."""
    inner_hops: float = 0.0
    """Latencies inside a node."""
    wire: float = 0.0
    """Bytes through the link between nodes, per byte reduced."""
    inner_wire: float = 0.0
    """Bytes through the link inside a node, per byte reduced."""
    handled: float = 0.0
    """Bytes that one stream between nodes sends, receives and adds up, per byte reduced."""
    inner_handled: float = 0.0
    """The same inside a node."""

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.hops + other.hops,
            self.inner_hops + other.inner_hops,
            self.wire + other.wire,
            self.inner_wire + other.inner_wire,
            self.handled + other.handled,
            self.inner_handled + other.inner_handled,
        )

    def of_part(self, share: float) -> "Traffic":
        """Return the cost of reducing only that share of the bytes."""
        return Traffic(
            self.hops,
            self.inner_hops,
            self.wire * share,
            self.inner_wire * share,
            self.handled * share,
            self.inner_handled * share,
        )


def flat_ring(ranks: int, nodes: int, lockstep: bool) -> Traffic:
    """Return the cost of a ring allreduce: 2(p-1) hops, 2(p-1)/p of the bytes through every link.

    Patarasuk and Yuan 2009. The ring passes each node's link once, however many ranks the node holds. Where hops are
    pipelined, 2(N-1) latencies lie between nodes and the others inside (NCCL's own tuning model).
    """
    if ranks < 2:
        return Traffic()
    moved, hops = 2.0 * (ranks - 1) / ranks, 2.0 * (ranks - 1)
    if nodes < 2:
        return Traffic(inner_hops=hops, inner_wire=moved, inner_handled=moved)
    between = hops if lockstep else 2.0 * (nodes - 1)
    return Traffic(
        hops=between,
        inner_hops=hops - between,
        wire=moved,
        inner_wire=moved if ranks > nodes else 0.0,
        handled=moved,
    )


@lru_cache(maxsize=_KEPT)
def flat(shape: Shape) -> Traffic:
    """Return the cost of an allreduce over all ranks at once."""
    return flat_ring(shape.world, shape.nodes, shape.lockstep)


@lru_cache(maxsize=_KEPT)
def hierarchical(shape: Shape, inner: int) -> Traffic:
    """Return the cost of an allreduce in groups of `inner` ranks and then between the groups.

    With reduce-scatter all ranks of a node share its link for 1/inner of the bytes each; with leaders one sends all.
    """
    if not 1 < inner < shape.world:
        return flat(shape)
    inner_nodes = max(1, math.ceil(inner / shape.local))
    groups = max(2, shape.world // inner)
    ring = flat_ring(inner, inner_nodes, shape.lockstep)
    outer = flat_ring(groups, min(groups, shape.nodes), shape.lockstep)
    if shape.scatters:
        # Reduce-scatter and all-gather together move what one ring allreduce does. `inner` outer rings of 1/inner of
        # the bytes run at once, those of one node over its one link.
        sharing = min(inner, shape.local) / inner
        return Traffic(
            hops=ring.hops + outer.hops,
            inner_hops=ring.inner_hops + outer.inner_hops,
            wire=ring.wire + outer.wire * sharing,
            inner_wire=ring.inner_wire + outer.inner_wire / inner,
            handled=ring.handled + outer.handled / inner,
            inner_handled=ring.inner_handled + outer.inner_handled / inner,
        )
    depth = math.ceil(math.log2(inner))
    broadcast = Traffic(
        hops=depth if inner_nodes > 1 else 0.0,
        inner_hops=0.0 if inner_nodes > 1 else depth,
        wire=1.0 if inner_nodes > 1 else 0.0,
        inner_wire=1.0,
        handled=1.0 if inner_nodes > 1 else 0.0,
        inner_handled=0.0 if inner_nodes > 1 else 1.0,
    )
    return ring + outer + broadcast
