"""Which rank this is, whether a process group lives, its backend on a device, and how long its ranks wait there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist

from .private_torch import GET_BACKEND, TIMEOUT


def find_place() -> Tuple[int, int]:
    """This rank, and how many there are: 0 of 1 where the script has joined no process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def is_alive(group: Any) -> bool:
    """Whether the script has not destroyed it."""
    try:
        dist.get_backend(group)
    except (AssertionError, RuntimeError, TypeError, ValueError):  # each of them in some torch
        return False
    return True


def find_backend(group: Any, device: torch.device) -> str:
    """`nccl` or `gloo`, also where get_backend() answers `undefined` (init_process_group() without a name, a device
    mesh) or what the script wrote (`cpu:gloo,cuda:nccl`)."""
    config = getattr(dist, "get_backend_config", None)
    name = str(config(group)) if config is not None else str(dist.get_backend(group))
    by_device = dict(part.split(":", 1) for part in name.split(",") if ":" in part)
    return by_device.get(device.type, str(dist.get_backend(group)))


def find_timeout(group: Any, device: torch.device) -> Optional[timedelta]:
    """How long a collective may take before torch ends the training; None where this torch does not tell.

    A script with long evaluations on one rank sets more than torch's own (10 minutes on NCCL, 30 on gloo).
    """
    try:
        options = GET_BACKEND.find(group)(device).options
    except (AttributeError, RuntimeError, TypeError):  # no such name, no backend for this device
        return None
    found: Optional[timedelta] = TIMEOUT.find(options)
    return found
