"""The process groups that carry gradients: made once, on every rank in the same order, and kept for the session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch.distributed as dist


@dataclass(frozen=True)
class Levels:
    """One rank's part in a two-level allreduce."""

    inner: Any
    """Group of the consecutive ranks that reduce among themselves first."""
    inner_size: int
    leader: int
    """Global rank that stands for the inner group."""
    outer: Any
    """Group of the ranks with the same place in their inner groups."""


class Communicators:
    """Creating a group is collective: every rank asks for the same ones at the same step boundary."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._flat: List[Any] = []
        self._levels: Dict[Tuple[int, int, Optional[str]], Levels] = {}

    def provide_flat(self, count: int) -> List[Any]:
        """`count` groups of all ranks, none of them the script's own: another thread may use them undisturbed."""
        while len(self._flat) < count:
            self._flat.append(dist.new_group(list(range(self._world_size))))
        return self._flat[:count]

    def provide_levels(self, count: int, inner_size: int, between: Optional[str] = None) -> List[Levels]:
        """`count` sets of two-level groups with `inner_size` consecutive ranks inside.

        `between` is the backend of the outer groups; None is the job's own.
        """
        for index in range(count):
            if (index, inner_size, between) not in self._levels:
                self._levels[index, inner_size, between] = self._make_levels(inner_size, between)
        return [self._levels[index, inner_size, between] for index in range(count)]

    def _make_levels(self, inner_size: int, between: Optional[str]) -> Levels:
        starts = range(0, self._world_size, inner_size)
        inner = [dist.new_group(list(range(start, start + inner_size))) for start in starts]
        outer = [
            dist.new_group([start + place for start in starts], backend=between)
            for place in range(inner_size)
        ]
        block, place = divmod(self._rank, inner_size)
        return Levels(inner[block], inner_size, block * inner_size, outer[place])
