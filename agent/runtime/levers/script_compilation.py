"""What the script compiles itself: torch.compile around a model under DistributedDataParallel, or inside it."""

from __future__ import annotations

import gc
import sys
from typing import Any

OURS = "is_fleet_advisors"
"""Marks what the runtime compiled."""


def is_compiled_by_script(ddp: Any) -> bool:
    """Whether torch.compile holds this model, a part of it, or what is around it. Walks all objects of the process."""
    if "torch._dynamo" not in sys.modules:
        return False
    for module in (ddp, *ddp.module.modules()):
        call = getattr(module, "_compiled_call_impl", None)
        if hasattr(module, "_orig_mod") or (call is not None and not hasattr(call, OURS)):
            return True
    # torch.compile(ddp) knows the model; the model knows nothing of it.
    kind = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    return kind is not None and any(
        item._orig_mod is ddp for item in gc.get_objects() if issubclass(type(item), kind)
    )


def is_cut_at_buckets(ddp: Any) -> bool:
    """Whether the script's compiled graph was cut where DDP's buckets ended: it stays so when they change."""
    if not is_compiled_by_script(ddp):
        return False
    import torch._dynamo.config

    return torch._dynamo.config.optimize_ddp in (True, "ddp_optimizer")
