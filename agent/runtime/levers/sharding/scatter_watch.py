"""What a sharded model hands to reduce-scatter, seen in one backward: number formats, groups, buffers under way."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Set

import torch
import torch.distributed as dist

from ... import private_torch

NAMES = ("reduce_scatter_single", "reduce_scatter_tensor")
"""What fully_shard calls: the second name until torch 2.12."""


class ScatterWatch:
    """Stands in for torch.distributed's function while it watches."""

    def __init__(self, groups: List[Any]) -> None:
        self.formats: List[torch.dtype] = []
        """Of each reduction."""
        self.process_groups: List[Any] = []
        """That each reduction went over."""
        self.most_under_way = 0
        """Reductions whose buffers were kept at once, the next one's with them."""
        self.is_partial = False
        """Whether copies of the model (HSDP) keep what was reduced for a later sum over them."""
        self._groups = groups
        self._contexts = list({id(c): c for c in map(private_torch.GATHER_CONTEXT.of, groups)}.values())
        self._own: Dict[str, Callable[..., Any]] = {}

    def start(self) -> None:
        for name in NAMES:
            if hasattr(dist, name):
                self._own[name] = getattr(dist, name)
                setattr(dist, name, self._watch(self._own[name]))

    def stop(self) -> None:
        for name, own in self._own.items():
            setattr(dist, name, own)
        self._own = {}

    def _watch(self, scatter: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            if tensors:
                self.formats.append(tensors[0].dtype)
                self.process_groups.append(kwargs.get("group"))
                if not all(private_torch.ADDS_COPIES.find(group, True) for group in self._groups):
                    self.is_partial = True
                self.most_under_way = max(self.most_under_way, 1 + self._count_under_way())
            return scatter(*args, **kwargs)

        return watched

    def _count_under_way(self) -> int:
        return sum(len(private_torch.UNDER_WAY.find(context, ())) for context in self._contexts)

    def list_group_ids(self) -> Set[int]:
        """Which process groups carried reductions."""
        return {id(group) for group in self.process_groups}
