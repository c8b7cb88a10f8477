"""Which backend a process group uses on a device, however the script named it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def find_backend(group: Any, device: torch.device) -> str:
    """`nccl` or `gloo`, also where get_backend() answers `undefined` (init_process_group() without a name, a device
    mesh) or what the script wrote (`cpu:gloo,cuda:nccl`)."""
    config = getattr(dist, "get_backend_config", None)
    name = str(config(group)) if config is not None else str(dist.get_backend(group))
    by_device = dict(part.split(":", 1) for part in name.split(",") if ":" in part)
    return by_device.get(device.type, str(dist.get_backend(group)))
