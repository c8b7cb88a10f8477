"""The bucket timeline of a step: gradients become ready, buckets close, their reductions overlap with backward.

Everything is computed for many strategies and many parameter sets at once: one pass over the buckets, vectors inside.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.tuning.model.collectives import Traffic

Array = NDArray[np.float64]
MIB = 2**20
MOST_ENTRIES = 24
"""Entries that a timeline holds at most: smaller neighbours are joined, their messages still counted one by one.

A joined entry waits for its last gradient: 1/24 of backward too long at most."""
_MOST_STOLEN = 0.9
"""Share of a second that reductions may take from backward at most."""
_LEAST_READY = 1e-9
"""Share of backward's work that is taken for none."""
_MOST_CHANNELS = 16
"""Reductions under way at once that are told apart."""


@dataclass(frozen=True)
class Gradient:
    """One gradient, in the order in which backward produces them."""

    bytes: float
    ready: float
    """Share of backward's work after which it is ready, 0 to 1."""
    layer: int


Entries = Array
"""Buckets (or several small ones one after another) in order, a row each: their bytes, their messages, and the share of
backward's work after which they are ready."""


@dataclass(frozen=True)
class Schedule:
    """How a strategy exchanges gradients (or parameters): everything that the timeline needs of it."""

    entries: Entries
    traffic: Traffic
    channels: int = 1
    """Reductions that may be under way at once; they share the links."""
    copied: float = 0.0
    """Bytes converted or copied, per byte of the entries."""
    interval: int = 1
    """Steps per exchange."""
    merges: bool = False
    """The optimizer steps once per exchange as well (gradient merge)."""
    messages_of: float = 1.0
    """Collectives per entry's message (PowerSGD sends three)."""


class Plan(NamedTuple):
    """How buckets close."""

    caps: tuple[float, ...]
    """Bytes of each, the last for all further ones."""
    most_layers: int = 0
    """In one bucket; 0 for any number."""
    as_defined: bool = False
    """Whether buckets are cut in the order in which parameters were defined, and so from the end of backward on."""


@dataclass(frozen=True)
class Line:
    """All gradients in order, with the sums that make forming buckets a search instead of a walk."""

    gradients: tuple[Gradient, ...]

    @cached_property
    def _formed(self) -> dict[Plan, Entries]:
        """Buckets by plan: many strategies share them."""
        return {}

    @cached_property
    def alone(self) -> Entries:
        """Every gradient a bucket of its own."""
        return _join_entries(np.array([(g.bytes, 1.0, g.ready) for g in self.gradients]))

    @cached_property
    def _edges(self) -> Array:
        """Bytes before each gradient, and of all."""
        return np.array([0.0, *accumulate(g.bytes for g in self.gradients)])

    @cached_property
    def _ranks(self) -> NDArray[np.int64]:
        """How many other layers began before each gradient's; they come one after another."""
        changes = (int(a.layer != b.layer) for a, b in pairwise(self.gradients))
        return np.array([0, *accumulate(changes)])

    def form_buckets(self, plan: Plan) -> Entries:
        """Return the buckets that DDP makes: one closes once it holds its cap, or before a layer too many."""
        self.prepare([plan])
        return self._formed[plan]

    def prepare(self, plans: Iterable[Plan]) -> None:
        """Form the buckets of many plans at once, one bucket of each at a time."""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self._formed]
        for as_defined, alike in groupby(sorted(new, key=_is_as_defined), _is_as_defined):
            self._form(list(alike), as_defined)

    def _form(self, new: Sequence[Plan], as_defined: bool) -> None:
        """Walk the gradients in the order in which buckets are cut: backward's, or else its reverse."""
        count = len(self.gradients)
        sums, ranks = self._edges, self._ranks
        if as_defined:
            sums, ranks = sums[-1] - sums[::-1], ranks[-1] - ranks[::-1]
        longest = max(len(plan.caps) for plan in new)
        limits = np.array([(*p.caps, *p.caps[-1:] * (longest - len(p.caps))) for p in new]).T
        layers = np.array([plan.most_layers or count + 1 for plan in new])
        ends = [np.zeros(len(new), dtype=np.int64)]
        while (ends[-1] < count).any():
            start = np.minimum(ends[-1], count - 1)
            full = np.searchsorted(sums, sums[start] + limits[min(len(ends), longest) - 1])
            crowded = np.searchsorted(ranks, ranks[start] + layers)
            ends.append(np.minimum(count, np.minimum(np.maximum(start + 1, full), crowded)))
            ends[-1][ends[-2] >= count] = count
        edges = np.array(ends)
        ready = np.array([gradient.ready for gradient in self.gradients])
        cells = np.ones((*edges[1:].shape, 3))
        cells[:, :, 0] = np.diff(sums[edges], axis=0)
        cells[:, :, 2] = ready[count - 1 - edges[:-1]] if as_defined else ready[edges[1:] - 1]
        lengths = (edges[:-1] < count).sum(axis=0)
        for column, plan in enumerate(new):
            entries = cells[: lengths[column], column]
            self._formed[plan] = _join_entries(entries[::-1] if as_defined else entries)


def _is_as_defined(plan: Plan) -> bool:
    return plan.as_defined


def _join_entries(entries: Entries) -> Entries:
    """Return at most MOST_ENTRIES entries: neighbours joined evenly, bytes and messages added up."""
    if len(entries) <= MOST_ENTRIES:
        return entries
    starts = np.arange(MOST_ENTRIES) * len(entries) // MOST_ENTRIES
    joined: Entries = np.add.reduceat(entries, starts)
    joined[:, 2] = np.maximum.reduceat(entries[:, 2], starts)
    return joined


@dataclass(frozen=True)
class Costs:
    """Seconds that the physical parameters say; every field has one row per parameter set: shape (K, 1)."""

    hop_s: Array
    inner_hop_s: Array
    wire_s: Array
    """Per byte through a node's link."""
    inner_wire_s: Array
    handling_s: Array
    """Per byte that a stream between nodes sends, receives and adds up."""
    inner_handling_s: Array
    message_s: Array
    """Per collective, before it begins to move bytes."""
    copy_s: Array
    """Per byte converted or copied."""
    stolen: Array
    """Seconds that backward loses per second of a reduction's own work beside it."""
    bend: Array
    """Exponent of the ready shares: above 1 gradients become ready sooner than their place says."""
    burst_s: float = 0.0
    """Seconds of the wire's work that pass at once after a rest: a shaped link's bucket of tokens."""


@dataclass(frozen=True)
class Table:
    """Schedules side by side, padded to the longest: arrays of shape (S, M) and (S,)."""

    bytes: Array
    messages: Array
    ready: Array
    hops: Array
    inner_hops: Array
    wire: Array
    inner_wire: Array
    handled: Array
    inner_handled: Array
    copied: Array
    collectives: Array
    channels: NDArray[np.int64]
    interval: Array
    merges: Array


def tabulate(schedules: Sequence[Schedule]) -> Table:
    """Return the schedules as arrays; missing entries are empty and ready when backward ends."""
    rows, columns = len(schedules), max((len(s.entries) for s in schedules), default=0)
    cells = np.zeros((rows, columns, 3))
    cells[:, :, 2] = 1.0
    for row, schedule in enumerate(schedules):
        cells[row, : len(schedule.entries)] = schedule.entries

    def column_of(values: Sequence[float]) -> Array:
        return np.array(values, dtype=np.float64)

    return Table(
        bytes=cells[:, :, 0],
        messages=cells[:, :, 1],
        ready=cells[:, :, 2],
        hops=column_of([s.traffic.hops for s in schedules]),
        inner_hops=column_of([s.traffic.inner_hops for s in schedules]),
        wire=column_of([s.traffic.wire for s in schedules]),
        inner_wire=column_of([s.traffic.inner_wire for s in schedules]),
        handled=column_of([s.traffic.handled for s in schedules]),
        inner_handled=column_of([s.traffic.inner_handled for s in schedules]),
        copied=column_of([s.copied for s in schedules]),
        collectives=column_of([s.messages_of for s in schedules]),
        channels=np.array([max(1, min(_MOST_CHANNELS, s.channels)) for s in schedules], dtype=np.int64),
        interval=column_of([max(1, s.interval) for s in schedules]),
        merges=column_of([float(s.merges) for s in schedules]),
    )


def run_backward(
    table: Table, costs: Costs, work_s: Array, slowdown: Array, handling: Array
) -> tuple[Array, Array]:
    """Return when backward ends and how much longer the reductions take, in seconds; shapes (K, S).

    `work_s` is backward without communication, `slowdown` a factor on all communication and
    `handling` one on what each stream does for itself; shapes (K, S).
    A reduction waits for one of `channels`, then its latency passes, then its bytes move: as fast as one stream can, or
    as the link lets through that all share. While reductions are under way they steal a part of backward's time.
    """
    latency = costs.hop_s * table.hops + costs.inner_hop_s * table.inner_hops + costs.message_s
    latency = latency * table.collectives * slowdown
    handled = costs.handling_s * table.handled + costs.inner_handling_s * table.inner_handled
    own = (handled * handling + costs.copy_s * table.copied) * slowdown
    wire = (costs.wire_s * table.wire + costs.inner_wire_s * table.inner_wire) * slowdown
    total_bytes, total_messages = table.bytes.sum(axis=1), table.messages.sum(axis=1)
    whole = latency * total_messages + (own + wire) * total_bytes
    busy_work = costs.message_s * table.collectives * slowdown * total_messages + own * total_bytes
    share = np.clip(costs.stolen * busy_work / np.maximum(whole, 1e-12), 0.0, _MOST_STOLEN)

    # One row a schedule, those of most entries first: the rows that still have an entry are always the first ones.
    counts = (table.messages > 0).sum(axis=1)
    order = np.argsort(-counts, kind="stable")
    latency, own, wire, share, work = (a.T[order] for a in (latency, own, wire, share, work_s))
    sizes, logs = table.bytes[order].T[:, :, None], np.log(np.maximum(table.ready[order], _LEAST_READY))
    done = np.zeros((len(sizes) + 1, *work.shape))
    np.maximum.accumulate(work * np.exp(logs.T[:, :, None] * costs.bend[:, 0]), axis=0, out=done[1:])
    needed, robs = np.diff(done, axis=0), share / (1.0 - share)
    robbed, channels, rows = needed * robs, table.channels[order], np.arange(len(order))
    starting, sending, moving = (
        latency * table.messages[order].T[:, :, None],
        wire * sizes,
        own * sizes + np.maximum(wire * sizes - costs.burst_s, 0.0),
    )
    pad = int(channels.max(initial=1))
    ends = np.zeros((pad + len(sizes), *work.shape))
    time, busy_until, link_free = (np.zeros_like(work) for _ in range(3))

    for place, n in enumerate((counts[:, None] > np.arange(len(sizes))).sum(axis=0).tolist()):
        beside = np.maximum(busy_until[:n] - time[:n], 0.0)
        time[:n] += needed[place, :n] + np.minimum(beside * share[:n], robbed[place, :n])
        begun = np.maximum(time[:n], ends[place + pad - channels[:n], rows[:n]]) + starting[place, :n]
        sent = np.maximum(begun - costs.burst_s, link_free[:n]) + sending[place, :n]
        end = np.maximum(begun + moving[place, :n], sent)
        link_free[:n], ends[place + pad, :n] = sent, end
        np.maximum(busy_until[:n], end, out=busy_until[:n])
    left, beside = work - done[counts[order], rows], np.maximum(busy_until - time, 0.0)
    time += left + np.minimum(beside * share, left * robs)
    back = np.argsort(order, kind="stable")
    return time[back].T, np.maximum(busy_until - time, 0.0)[back].T
