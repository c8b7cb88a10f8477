"""Times every call in which the script waits for other ranks, whatever of torch.distributed makes it.

All of that module's calls, object collectives and SyncBatchNorm among them, end in methods of ProcessGroup and in
Work.wait; functional collectives wait in one function. DDP's reducer calls none of these: it is C++. In its forward
DDP waits for rank 0's buffers, a part of the step of their own, and for the order of new buckets, which counts as its
reduction.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import torch.distributed as dist

from .. import current
from ..observe.recorder import BUFFERS, COLLECTIVE, REDUCTION
from ..private_torch import BROADCAST_MODEL, FUNCTIONAL, GATHER_INTO, REBUILD_BUCKETS, SCATTER_INTO
from .after_import import call_after_import

ISSUED = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "broadcast",
    "gather",
    "scatter",
    "alltoall",
    "alltoall_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "recv_anysource",
    GATHER_INTO.name,
    SCATTER_INTO.name,
)
"""ProcessGroup's, by the names of all its releases. Where a device works for the host, issuing one makes the device
wait, and Work.wait is not called."""


NO_EXCHANGE = ("barrier", "monitored_barrier", "wait")
"""No values go from rank to rank in these."""


def patch_collectives(is_compiling: Callable[[], bool]) -> None:
    """What a script compiles is left alone."""
    if not dist.is_available():
        return

    def patch(owner: Any, name: str, phase: int = COLLECTIVE) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        exchanges = name not in NO_EXCHANGE

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            runtime = None if is_compiling() else current.current_runtime
            if runtime is None or not runtime.begin_collective(phase, exchanges, name, args):
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                runtime.end_phase(phase)

        setattr(owner, name, call)

    for name in ISSUED:
        patch(dist.ProcessGroup, name)
    patch(dist.Work, "wait")
    patch(dist, BROADCAST_MODEL.name, BUFFERS)
    patch(dist.Reducer, REBUILD_BUCKETS.name, REDUCTION)
    call_after_import(FUNCTIONAL, lambda: patch(sys.modules[FUNCTIONAL], "wait_tensor"))
