"""Module-level hooks on every model that trains, DDP or sharded: picklable, and silent when there is no runtime."""

from __future__ import annotations

from typing import Any

import torch

from . import current
from .untraced import untraced


@untraced
def before_forward(ddp: Any, args: Any, kwargs: Any) -> None:
    """Runs before DDP's own _pre_forward: the safe place to switch strategies."""
    runtime = current.current_runtime
    if runtime is None:
        return
    if ddp.training and torch.is_grad_enabled():
        runtime.begin_forward(ddp, args, kwargs)
    elif not ddp.training:
        runtime.note_interruption()


@untraced
def after_forward(ddp: Any, _args: Any, _kwargs: Any, output: Any) -> Any:
    runtime = current.current_runtime
    if runtime is not None and ddp.training and torch.is_grad_enabled():
        return runtime.end_forward(ddp, output)
    return output
