"""Why a script that wraps and shards no model cannot be measured, by what was seen of its exchanges."""

from __future__ import annotations

import sys
from typing import Dict, Tuple

import torch.distributed as dist

from .models import find_engine

WRAP = (
    "Wrap the model in torch.nn.parallel.DistributedDataParallel (Hugging Face Trainer and Lightning do so when "
    "started by torchrun), or shard it with fully_shard."
)
ACCELERATE = (
    "Accelerate takes each rank for the only one where it finds no accelerator: the variable ACCELERATE_USE_CPU=true "
    "or Accelerator(cpu=True) lets them train together."
)


def find_trouble(when: str, steps: int, exchanges: int) -> Tuple[str, Dict[str, object]]:
    """Its code and facts. `when` says since when or how long; `exchanges` are calls that brought values from rank to
    rank while the script made its optimizer steps."""
    if engine := find_engine():
        return "own_engine", {"engine": engine}
    if steps and not (dist.is_available() and dist.is_initialized()):
        return "no_group", {"steps": steps, "when": "before it ended" if when == "ended" else "so far"}
    if exchanges:
        return "no_ddp", {"when": when, "calls": exchanges}
    return "alone", {"when": when, "remedy": _advise()}


def _advise() -> str:
    """Accelerate's own word is asked where the script uses it."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return WRAP
    return ACCELERATE if state.AcceleratorState().distributed_type.value == "NO" else WRAP
