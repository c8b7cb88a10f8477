"""What the script compiles itself: torch.compile around a model under DistributedDataParallel, or inside it."""

from __future__ import annotations

import gc
from typing import Any, Optional

from .. import private_torch

OURS = "is_fleet_advisors"
"""Marks what the runtime compiled."""


def is_compiled_by_script(model: Any, inner: Optional[Any] = None) -> bool:
    """Whether torch.compile holds this model, a part of it, or what is around it. Walks all objects of the process.

    `inner` is the script's own module, which DistributedDataParallel wraps where none is given.
    """
    if not private_torch.is_dynamo_loaded():
        return False
    inner = model.module if inner is None else inner
    for module in (model, *inner.modules()):
        call = private_torch.COMPILED_CALL.find(module)
        if private_torch.ORIGINAL.is_in(module) or (call is not None and not hasattr(call, OURS)):
            return True
    # torch.compile(model) knows the model; the model knows nothing of it.
    kind = private_torch.COMPILED_MODEL.find_loaded()
    return kind is not None and any(
        private_torch.ORIGINAL.find(item) is model
        for item in gc.get_objects()
        if issubclass(type(item), kind)
    )


def is_cut_at_buckets(ddp: Any) -> bool:
    """Whether the script's compiled graph was cut where DDP's buckets ended: it stays so when they change."""
    if not is_compiled_by_script(ddp):
        return False
    return private_torch.CUTS_AT_BUCKETS.find_loaded() in (True, "ddp_optimizer")
