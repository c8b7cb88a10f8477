"""Trainings that wrap and shard no model: why they cannot be measured, or what a diagnosis sees of them."""

from __future__ import annotations

import math
import sys
from typing import Any, Dict, List, Tuple

import torch.distributed as dist

from .models import count_pipeline_ranks, find_engine

WRAP = (
    "Wrap the model in torch.nn.parallel.DistributedDataParallel (Hugging Face Trainer and Lightning do so when "
    "started by torchrun), or shard it with fully_shard."
)
ACCELERATE = (
    "Accelerate takes each rank for the only one where it finds no accelerator: the variable ACCELERATE_USE_CPU=true "
    "or Accelerator(cpu=True) lets them train together."
)


def find_trouble(when: str, steps: int, exchanges: int, ranks: int) -> Tuple[str, Dict[str, object]]:
    """Its code and facts. `when` says since when or how long; `exchanges` are calls that brought values from rank to
    rank while the script made its optimizer steps."""
    if engine := find_engine():
        return "own_engine", {"engine": engine}
    if ranks == 1 and steps:
        return "no_module", {"when": when, "steps": steps}
    if steps and not (dist.is_available() and dist.is_initialized()):
        return "no_group", {"steps": steps, "when": "before it ended" if when == "ended" else "so far"}
    if exchanges:
        return "no_ddp", {"when": when, "calls": exchanges}
    return "alone", {"when": when, "remedy": _advise()}


def find_exchanger() -> str:
    """What exchanges gradients where several ranks train such a model."""
    return find_engine() or "calls of the script's own"


def count_sharers(parameters: List[Any]) -> int:
    """Ranks that are given the same samples: those of a pipeline, times those that one parameter is split over."""
    split = [
        math.prod(mesh.size(dim) for dim, place in enumerate(parameter.placements) if place.is_shard())
        for parameter in parameters
        if (mesh := getattr(parameter, "device_mesh", None)) is not None
    ]
    return max(1, count_pipeline_ranks()) * max(split, default=1)


def _advise() -> str:
    """Accelerate's own word is asked where the script uses it."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return WRAP
    return ACCELERATE if state.AcceleratorState().distributed_type.value == "NO" else WRAP
