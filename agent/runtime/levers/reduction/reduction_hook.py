"""The one communication hook: convert, choose a communicator, reduce flat or in two levels, convert back."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist

from ...backends import find_backend
from ...observe.reduced import count_reduced
from ...private_torch import SPARSE_VALUES
from .communicators import Communicators, Levels
from .reduction_plan import ReductionPlan
from .sum_check import SumCheck

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def reduce_bucket(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP calls for every full bucket; `state` is a BucketReduction or a LowRankReduction."""
    return state.reduce(bucket)


class BucketReduction:
    """Averages like DDP's native path: gradients are multiplied by 1/world before they are summed."""

    def __init__(
        self,
        plan: ReductionPlan,
        ddp: Any,
        communicators: Communicators,
        device: torch.device,
        checked_passes: int = 0,
    ) -> None:
        self._plan = plan
        self._share = 1.0 / dist.get_world_size(ddp.process_group)
        self.check = SumCheck(ddp.process_group, checked_passes, count_reduced(ddp))
        self._count_lock = threading.Lock()
        self._lanes: List[Any] = []
        self._levels: List[Levels] = []
        group = ddp.process_group
        # Reduce-scatter moves least, but gloo has none worth the name; there one leader stands for its group.
        self._scatters = find_backend(group, device) == "nccl"
        self._flat = communicators.provide_flat(plan.own_groups, plan.configuration, group)
        if len(self._flat) < plan.communicators:
            self._flat = [group, *self._flat]
        if plan.serial or plan.inner_size:
            lanes = 1 if plan.serial else plan.communicators
            self._lanes = communicators.provide_lanes(lanes, group, plan.gloo_between)
        if plan.inner_size:
            between = "gloo" if plan.gloo_between else None
            self._levels = communicators.provide_levels(
                plan.communicators, plan.inner_size, between, plan.configuration, group
            )
        self.counts: Dict[str, List[int]] = {}
        self.reset_counts()

    def reset_counts(self) -> None:
        places = self._plan.communicators
        self.counts = {
            "buckets": [0] * places,
            "bytes": [0] * places,
            "converted": [0],
            "two_level": [0],
            "lane": [0],
        }

    def reduce(self, bucket: dist.GradBucket) -> Any:
        buffer = bucket.buffer()
        place = 0 if buffer.is_sparse else bucket.index() % self._plan.communicators
        wire_format = self._choose_format(buffer)
        checked = self.check.watch(bucket, wire_format)
        if buffer.is_sparse:
            buffer.div_(1.0 / self._share)
        else:
            buffer.mul_(self._share)
        self._count(buffer, place, wire_format)
        future = self._submit(buffer, wire_format, place)
        return future if checked is None else future.then(checked.keep)

    def _submit(self, buffer: torch.Tensor, wire_format: Optional[torch.dtype], place: int) -> Any:
        if self._lanes:
            lane = self._lanes[0 if self._plan.serial else place]
            return lane.submit(lambda: self._reduce_in_lane(buffer, wire_format, place))
        wire = buffer if wire_format is None else buffer.to(wire_format)
        future = dist.all_reduce(wire, group=self._flat[place], async_op=True).get_future()
        if wire is buffer:
            return future.then(_take_first)
        return future.then(lambda done: buffer.copy_(done.value()[0]))

    def _choose_format(self, buffer: torch.Tensor) -> Optional[torch.dtype]:
        if self._plan.wire_format is None or buffer.is_sparse or buffer.element_size() <= 2:
            return None
        return DTYPES[self._plan.wire_format]

    def _reduce_in_lane(
        self, buffer: torch.Tensor, wire_format: Optional[torch.dtype], place: int
    ) -> torch.Tensor:
        # Converted here, not by the caller: on CUDA the copy must belong to the lane's stream.
        wire = buffer if wire_format is None else buffer.to(wire_format)
        if self._levels and not wire.is_sparse:
            reduce_in_levels(wire, self._levels[place], self._scatters)
        else:
            dist.all_reduce(wire, group=self._flat[place])
        if wire is not buffer:
            buffer.copy_(wire)
        return buffer

    def _count(self, buffer: torch.Tensor, place: int, wire_format: Optional[torch.dtype]) -> None:
        elements = SPARSE_VALUES.of(buffer)().numel() if buffer.is_sparse else buffer.numel()
        with self._count_lock:
            self.counts["buckets"][place] += 1
            self.counts["bytes"][place] += elements * (buffer.element_size() if wire_format is None else 2)
            self.counts["converted"][0] += wire_format is not None
            self.counts["two_level"][0] += bool(self._levels) and not buffer.is_sparse
            self.counts["lane"][0] += bool(self._lanes)


def reduce_in_levels(wire: torch.Tensor, levels: Levels, scatters: bool) -> None:
    """Sums `wire` over all ranks in place: inside the inner groups, between them, and back."""
    if not scatters:
        dist.reduce(wire, dst=levels.leader, group=levels.inner)
        if dist.get_rank() == levels.leader:
            dist.all_reduce(wire, group=levels.outer)
        dist.broadcast(wire, src=levels.leader, group=levels.inner)
        return
    shard_length = -(-wire.numel() // levels.inner_size)
    padded = wire
    if shard_length * levels.inner_size != wire.numel():
        padded = wire.new_zeros(shard_length * levels.inner_size)
        padded[: wire.numel()].copy_(wire)
    shard = wire.new_empty(shard_length)
    dist.reduce_scatter_tensor(shard, padded, group=levels.inner)
    dist.all_reduce(shard, group=levels.outer)
    dist.all_gather_into_tensor(padded, shard, group=levels.inner)
    if padded is not wire:
        wire.copy_(padded[: wire.numel()])


def _take_first(done: Any) -> torch.Tensor:
    result: torch.Tensor = done.value()[0]
    return result


def find_unsupported_formats(group: Any, device: torch.device) -> Dict[str, str]:
    """Collective. 16-bit formats that the group's backend does not reduce, each with its reason."""
    unsupported: Dict[str, str] = {}
    for name, dtype in DTYPES.items():
        try:
            dist.all_reduce(torch.ones(2, dtype=dtype, device=device), group=group)
        except RuntimeError as error:
            unsupported[name] = str(error).splitlines()[0]
    return unsupported
