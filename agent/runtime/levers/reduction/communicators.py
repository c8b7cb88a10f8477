"""The process groups that carry gradients: made once, on every rank in the same order, and kept for the session."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from ...backends import find_backend


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


ORDERED_FROM = (2, 26)
"""NCCL's first release that can keep the launch order of several communicators the same on every rank."""
ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"


def explain_no_order(backend: str) -> Optional[str]:
    """Why collectives of several communicators side by side could wait for each other for ever, or None."""
    if backend != "nccl":
        return None
    version = torch.cuda.nccl.version()
    if version[:2] < ORDERED_FROM:
        found = ".".join(str(number) for number in version)
        return (
            f"NCCL {found} keeps no order among several communicators, so that ranks may wait for each other for ever: "
            "use a torch with NCCL 2.26 or later."
        )
    if os.environ.get(ORDER) != "1":
        return f"The job sets {ORDER}={os.environ.get(ORDER, '')}: several communicators would have no common order."
    return None


class Communicators:
    """Creating a group is collective: every rank asks for the same ones at the same step boundary."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self._rank = rank
        self._world_size = world_size
        self._device = device
        self._flat: List[Any] = []
        self._levels: Dict[Tuple[int, int, Optional[str]], Levels] = {}

    def provide_flat(self, count: int) -> List[Any]:
        """`count` groups of all ranks, none of them the script's own: another thread may use them undisturbed."""
        while len(self._flat) < count:
            self._flat.append(dist.new_group(list(range(self._world_size)), backend=self._find_backend()))
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
        inner = self._split([list(range(start, start + inner_size)) for start in starts], None)
        places = range(inner_size)
        outer = self._split([[start + place for start in starts] for place in places], between)
        return Levels(inner, inner_size, self._rank // inner_size * inner_size, outer)

    def _split(self, parts: List[List[int]], backend: Optional[str]) -> Any:
        """This rank's group of a partition of all ranks: one call, whatever their number."""
        own = self._find_backend()
        backend = backend or own
        mine = next(part for part in parts if self._rank in part)
        if backend != "nccl" or getattr(dist.group.WORLD, "bound_device_id", None) is None:
            return dist.new_group(mine, backend=backend, use_local_synchronization=True)
        # The job bound a device to its process group: then NCCL splits communicators, which takes every rank.
        if hasattr(dist, "split_group") and dist.get_backend() == own:
            return dist.split_group(split_ranks=parts)
        groups = [dist.new_group(part, backend=backend) for part in parts]
        return groups[parts.index(mine)]

    def _find_backend(self) -> str:
        return find_backend(dist.group.WORLD, self._device)
