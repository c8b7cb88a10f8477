"""Gradient compression for dgc: torch's PowerSGD hook, which sends two thin matrices in place of each large one.

Deep gradient compression itself (arXiv 1712.01887) sends the largest gradients; torch has no such hook. PowerSGD
(arXiv 1905.13727) compresses as far by other means, also with error feedback: a translation, and said to be one.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Dict, List

import torch
import torch.distributed as dist

from ...observe.reduced import count_reduced, list_reduced
from .communicators import Communicators
from .reduction_plan import ReductionPlan
from .sum_check import SumCheck

EXACT_STEPS = 2
"""Steps reduced whole first: DDP still moves gradients between buckets, and the error fed back belongs to a bucket."""
_LEAST_NORM = 1e-8
"""Added where PowerSGD divides by the norm of a column: a matrix of zeros must not become nan."""


class _KeptBucket:
    """What the hook reads of a bucket; DDP's own object is valid during its call only."""

    def __init__(self, bucket: dist.GradBucket) -> None:
        self._buffer: torch.Tensor = bucket.buffer()
        self._index: int = bucket.index()
        self._gradients: List[torch.Tensor] = bucket.gradients()
        self._is_last: bool = bucket.is_last()

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def index(self) -> int:
        return self._index

    def gradients(self) -> List[torch.Tensor]:
        return self._gradients

    def is_last(self) -> bool:
        return self._is_last


class LowRankReduction:
    """State of the hook for one race: the error that it feeds back ends with it, and with each of its segments."""

    def __init__(
        self, plan: ReductionPlan, ddp: Any, communicators: Communicators, device: torch.device
    ) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

        self._hook = power_sgd.powerSGD_hook
        # The hook waits for collectives inside callbacks of others. gloo runs both on the same few threads, so there
        # one bucket after another goes through a thread and a process group of its own.
        group, self._lane = ddp.process_group, None
        if device.type != "cuda":
            [self._lane] = communicators.provide_lanes(1, group)
        if self._lane is not None or plan.configuration:
            [group] = communicators.provide_flat(1, plan.configuration, group)
        self._state = power_sgd.PowerSGDState(
            process_group=group,
            matrix_approximation_rank=plan.rank,
            start_powerSGD_iter=EXACT_STEPS,
            orthogonalization_epsilon=_LEAST_NORM,
        )
        self.check = SumCheck(ddp.process_group, EXACT_STEPS, count_reduced(ddp))
        self._before = self._after = 0
        self.counts: Dict[str, int] = {}
        self.reset_counts()

    def reduce(self, bucket: dist.GradBucket) -> Any:
        self.counts["buckets"] += 1
        checked = self.check.watch(bucket)
        if self._lane is None:
            future = self._hook(self._state, bucket)
        else:
            kept = _KeptBucket(bucket)
            future = self._lane.submit(lambda: self._hook(self._state, kept).wait())
        return future if checked is None else future.then(checked.keep)

    def reset_counts(self) -> None:
        self._before = self._state.total_numel_before_compression
        self._after = self._state.total_numel_after_compression
        self.counts = {"buckets": 0}

    def forget_errors(self) -> None:
        """Begins a segment: what earlier ones still owed belongs to parameters that were put back."""
        for error in self._state.error_dict.values():
            error.zero_()

    def count_numbers(self) -> "tuple[int, int]":
        """Numbers to reduce, and numbers sent for them, since `reset_counts`."""
        state = self._state
        return (
            state.total_numel_before_compression - self._before,
            state.total_numel_after_compression - self._after,
        )


def explain_no_compression(ddp: Any) -> str:
    """Why this model's gradients cannot be compressed; "" when they can."""
    if importlib.util.find_spec("numpy") is None:
        return "torch's PowerSGD hook needs NumPy, which is not installed: pip install numpy."
    modules = ddp.modules()
    if any(getattr(module, "sparse", False) for module in modules):
        return "Some embedding has sparse gradients, which torch's PowerSGD hook cannot compress."
    if ddp.find_unused_parameters:
        return (
            "The script has DDP search for parameters that a step does not use (find_unused_parameters): their "
            "gradients are zero, from which PowerSGD does not come back, since it starts from the step before."
        )
    if all(parameter.dim() < 2 for parameter in list_reduced(ddp)):
        return "No trained parameter is a matrix, so there is nothing to compress."
    return ""
