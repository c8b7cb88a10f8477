"""The bucket timeline of a step: gradients become ready, buckets close, their reductions overlap with backward.

Everything is computed for many strategies and many parameter sets at once: one pass over the buckets, vectors inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.tuning.collectives import Traffic

Array = NDArray[np.float64]
MIB = 2**20
MOST_ENTRIES = 64
"""Entries that a timeline holds at most: smaller neighbours are joined, their messages still counted one by one."""
_MOST_STOLEN = 0.9
_MOST_CHANNELS = 16


@dataclass(frozen=True)
class Gradient:
    """One gradient, in the order in which backward produces them."""

    bytes: float
    ready: float
    """Share of backward's work after which it is ready, 0 to 1."""
    layer: int


@dataclass(frozen=True)
class Entry:
    """A bucket, or several small ones one after another."""

    bytes: float
    messages: float
    ready: float


@dataclass(frozen=True)
class Schedule:
    """How a strategy exchanges gradients (or parameters): everything that the timeline needs of it."""

    entries: tuple[Entry, ...]
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


def form_buckets(
    gradients: Sequence[Gradient], first_bytes: float, cap_bytes: float, most_layers: int = 0
) -> tuple[Entry, ...]:
    """Return the buckets that DDP makes: one closes once it holds its cap, or before a layer too many."""
    entries: list[Entry] = []
    held, ready, inside = 0.0, 0.0, set[int]()
    for gradient in gradients:
        cap = cap_bytes if entries else first_bytes
        full = most_layers and gradient.layer not in inside and len(inside) == most_layers
        if held and (held >= cap or full):
            entries.append(Entry(held, 1.0, ready))
            held, inside = 0.0, set()
        held, ready = held + gradient.bytes, gradient.ready
        inside.add(gradient.layer)
    if held:
        entries.append(Entry(held, 1.0, ready))
    return join_entries(entries)


def join_entries(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return at most MOST_ENTRIES entries: neighbours joined evenly, bytes and messages added up."""
    if len(entries) <= MOST_ENTRIES:
        return tuple(entries)
    joined: list[Entry] = []
    for place in range(MOST_ENTRIES):
        start, end = (len(entries) * edge // MOST_ENTRIES for edge in (place, place + 1))
        part = entries[start:end]
        joined.append(
            Entry(sum(e.bytes for e in part), sum(e.messages for e in part), max(e.ready for e in part))
        )
    return tuple(joined)


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
    sizes, messages = np.zeros((rows, columns)), np.zeros((rows, columns))
    ready = np.ones((rows, columns))
    for row, schedule in enumerate(schedules):
        for column, entry in enumerate(schedule.entries):
            sizes[row, column], messages[row, column] = entry.bytes, entry.messages
            ready[row, column] = entry.ready

    def column_of(values: Sequence[float]) -> Array:
        return np.array(values, dtype=np.float64)

    return Table(
        bytes=sizes,
        messages=messages,
        ready=ready,
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
    share = costs.stolen * busy_work / np.maximum(whole, 1e-12)
    share = np.clip(share, 0.0, _MOST_STOLEN)

    time, done = np.zeros_like(work_s), np.zeros_like(work_s)
    busy_until, link_free = np.zeros_like(work_s), np.zeros_like(work_s)
    ends = np.zeros((_MOST_CHANNELS, *work_s.shape))
    schedules = np.arange(work_s.shape[1])

    def advance(target: Array) -> None:
        nonlocal time, done
        needed = np.maximum(target - done, 0.0)
        beside = np.maximum(busy_until - time, 0.0)
        time = time + needed + np.minimum(beside * share, needed * share / (1.0 - share))
        done = np.maximum(done, target)

    for place in range(table.bytes.shape[1]):
        advance(work_s * table.ready[:, place] ** costs.bend)
        channel = place % table.channels
        start = np.maximum(time, ends[channel, :, schedules].T)
        moving = start + latency * table.messages[:, place]
        sent = np.maximum(moving, link_free) + wire * table.bytes[:, place]
        end = np.maximum(moving + (own + wire) * table.bytes[:, place], sent)
        filled = table.messages[:, place] > 0
        end = np.where(filled, end, np.maximum(busy_until, 0.0))
        link_free = np.where(filled, sent, link_free)
        ends[channel, :, schedules] = end.T
        busy_until = np.maximum(busy_until, end)
    advance(work_s)
    return time, np.maximum(busy_until - time, 0.0)
