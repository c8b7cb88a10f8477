"""Times allreduces of growing size between the ranks, at a step boundary, over process groups of the runtime's own."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any, Dict, List, Sequence

import torch
import torch.distributed as dist

from ..backends import find_backend
from ..levers.reduction.communicators import Communicators, explain_no_order
from ..levers.reduction.reduction_plan import ReductionPlan
from ..link.control import AgentLost
from ..link.exchange import Exchange, PeerLost
from ..observe.clock import Clock

WORLD, NODE, ACROSS = "world", "node", "across"
SMALLEST_BYTES = 1024
LARGEST_BYTES = 64 * 2**20
FACTOR = 8
WORLD_BUDGET_S = 1.2
LEVEL_BUDGET_S = 0.4
"""Of the time spent on the collectives of the node level, and as much on those across nodes."""
SIZE_BUDGET_S = 0.7
QUICK_S = 0.05
"""Quick collectives are repeated until they have taken about this long together."""
FEWEST_REPEATS, MOST_REPEATS = 3, 9
TIMEOUT_S = 180.0
_WIDTH = 4
"""Bytes of a number: float32 is what every backend reduces."""
_ALONE = ReductionPlan(serial=True)
"""Takes a communicator of its own beside the job's."""


def list_sizes(largest_bytes: int) -> List[int]:
    """Sizes from 1 KB by factors of 8; the last one is the largest that is wanted, instead of a neighbour of it."""
    sizes = [SMALLEST_BYTES]
    while sizes[-1] * FACTOR < largest_bytes:
        sizes.append(sizes[-1] * FACTOR)
    if len(sizes) > 1 and largest_bytes < 2 * sizes[-1]:
        sizes.pop()
    if largest_bytes > sizes[-1]:
        sizes.append(largest_bytes // _WIDTH * _WIDTH)
    return sizes


def choose_repeats(expected_s: float, left_s: float) -> int:
    """How often a collective that may take so long is timed; 0 ends the sweep of a level."""
    expected_s = max(expected_s, 1e-6)
    wanted = min(MOST_REPEATS, max(FEWEST_REPEATS, int(QUICK_S / expected_s)))
    return max(0, min(wanted, int(min(SIZE_BUDGET_S, left_s) / expected_s)))


class LinkSweep:
    """Every rank goes through the same sizes; rank 0, which takes part in all, decides how far and how often."""

    def __init__(
        self,
        exchange: Exchange,
        communicators: Communicators,
        device: torch.device,
        clock: Clock,
        local_world_size: int,
    ) -> None:
        self._exchange, self._communicators = exchange, communicators
        self._device, self._clock = device, clock
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._local_world_size = local_world_size
        self._found: List[Dict[str, Any]] = []
        self._buffer = torch.empty(0)

    def measure(self, largest_bytes: int) -> List[Dict[str, Any]]:
        """This rank's medians, one entry per collective it took part in; [] where they cannot be run.

        Collective: call it on every rank at the same step boundary. A backend that refuses on all ranks alike, or a
        card without room for another communicator, ends the sweep; what was measured until then is kept.
        """
        with torch.no_grad():
            if not self._prepare(min(LARGEST_BYTES, max(SMALLEST_BYTES, largest_bytes))):
                return []
            try:
                self._measure_levels()
            except (PeerLost, AgentLost):
                raise
            except RuntimeError:
                self._clock.settle()
            self._buffer = torch.empty(0)
            return self._found

    def _prepare(self, largest_bytes: int) -> bool:
        """Zeros of the largest size that every rank has room for; whether there are any."""
        try:
            buffer = torch.zeros(largest_bytes // _WIDTH, dtype=torch.float32, device=self._device)
            room = int(buffer.numel() * _WIDTH)
        except RuntimeError:  # no memory left beside the training
            room = 0
        rooms = self._exchange.gather(room, "the room for a link sweep", TIMEOUT_S)
        common = self._exchange.broadcast(min(rooms or [0]), "the size of the link sweep", TIMEOUT_S)
        if int(common) < SMALLEST_BYTES:
            return False
        self._buffer = buffer[: int(common) // _WIDTH]
        return True

    def _measure_levels(self) -> None:
        sizes = list_sizes(self._buffer.numel() * _WIDTH)
        self._communicators.prepare(_ALONE)
        self._sweep(WORLD, self._world_size, self._communicators.provide_flat(1), sizes, WORLD_BUDGET_S)
        if explain_no_order(find_backend(dist.group.WORLD, self._device)) is None:
            self._measure_pair()
        inner = self._local_world_size
        if not 1 < inner < self._world_size or self._world_size % inner:
            return
        self._communicators.prepare(replace(_ALONE, inner_size=inner))
        (levels,) = self._communicators.provide_levels(1, inner)
        self._sweep(NODE, inner, [levels.inner], sizes, LEVEL_BUDGET_S)
        # One rank of each node: where all of them reduced at once they would share the node's link.
        leads = self._rank % inner == 0
        self._sweep(ACROSS, self._world_size // inner, [levels.outer] if leads else [], sizes, LEVEL_BUDGET_S)

    def _measure_pair(self) -> None:
        """Two side by side, at the largest size that there is room for twice."""
        pairs = [entry for entry in self._found if 2 * entry["bytes"] <= self._buffer.numel() * _WIDTH]
        if pairs:
            self._communicators.prepare(replace(_ALONE, communicators=2))
            flat = self._communicators.provide_flat(2)
            self._sweep(WORLD, self._world_size, flat, [pairs[-1]["bytes"]], SIZE_BUDGET_S)

    def _sweep(
        self, level: str, ranks: int, groups: Sequence[Any], sizes: List[int], budget_s: float
    ) -> None:
        """A rank without groups only keeps in step with the others."""
        self._time(groups, SMALLEST_BYTES, 1)  # connects
        expected_s = self._time(groups, SMALLEST_BYTES, FEWEST_REPEATS)
        if len(sizes) == 1 and self._found:
            expected_s = 2 * self._found[-1]["seconds"]
        start_s, before = time.perf_counter(), sizes[0]
        for size in sizes:
            expected_s *= size / before
            repeats = choose_repeats(expected_s, budget_s - (time.perf_counter() - start_s))
            repeats = int(self._exchange.broadcast(repeats, "the length of a link sweep", TIMEOUT_S))
            if not repeats:
                return
            expected_s = self._time(groups, size, repeats)
            before = size
            if groups:
                self._found.append(
                    {
                        "level": level,
                        "ranks": ranks,
                        "bytes": size,
                        "seconds": expected_s,
                        "concurrent": len(groups),
                    }
                )

    def _time(self, groups: Sequence[Any], size: int, repeats: int) -> float:
        """Median seconds of an allreduce, of one in each group side by side where there are several."""
        if not groups:
            return 0.0
        length = size // _WIDTH
        tensors = [self._buffer[place * length : (place + 1) * length] for place in range(len(groups))]
        if len(groups) * length > self._buffer.numel():
            tensors = [self._buffer[:length]] * len(groups)
        # The ranks meet in one that does not count.
        dist.all_reduce(self._buffer[: SMALLEST_BYTES // _WIDTH], group=groups[0])
        start, laps = self._clock.mark(), []
        for _ in range(repeats):
            if len(groups) == 1:
                dist.all_reduce(tensors[0], group=groups[0])
            else:
                for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups)]:
                    work.wait()
            end = self._clock.mark()
            laps.append((start, end))
            start = end
        self._clock.settle()
        return statistics.median(self._clock.measure(start, end) for start, end in laps)
