"""What stands around the forward of every model that trains: in DDP's own, elsewhere as hooks, which are picklable."""

from __future__ import annotations

from typing import Any, List

import torch

from . import current
from .observe import deepspeed
from .observe.models import trains
from .observe.recorder import FORWARD


def before_forward(ddp: Any, args: Any, kwargs: Any) -> None:
    """Runs before DDP's own _pre_forward: the safe place to switch strategies."""
    runtime = current.current_runtime
    if runtime is None:
        return
    if not trains(ddp):
        runtime.note_evaluation()
    elif torch.is_grad_enabled():
        runtime.begin_forward(ddp, args, kwargs)
    else:
        runtime.begin_phase(FORWARD)


def after_forward(ddp: Any, _args: Any, _kwargs: Any, output: Any) -> Any:
    runtime = current.current_runtime
    if runtime is None or not trains(ddp):
        return output
    if torch.is_grad_enabled():
        return runtime.end_forward(ddp, output)
    runtime.end_phase(FORWARD)
    return output


def watch(model: Any) -> List[Any]:
    """Before all other hooks; returns what takes them off."""
    return [
        model.register_forward_pre_hook(before_forward, prepend=True, with_kwargs=True),
        model.register_forward_hook(after_forward, with_kwargs=True),
    ]


def watch_sharded(root: Any) -> None:
    """Before fully_shard's own hook: parameters are still sharded when strategies are switched."""
    watch(root)
    if deepspeed.is_engine(root):
        deepspeed.extend_phases(root)
