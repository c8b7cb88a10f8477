"""DeepSpeed's engine: found through the optimizer that it steps, and described."""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any, List, Optional

import torch

from .. import current
from .recorder import BACKWARD, OPTIMIZER

NAME = "DeepSpeed"
STEERED_STAGES = (0, 1, 2)
"""ZeRO's stages whose parameters every rank holds whole."""
BUCKETED_STAGES = (1, 2)
_ZERO = "DeepSpeedZeroOptimizer"
_NEEDED = ("reduce_bucket_size", "communication_data_type", "ipg_buckets", "reduce_ipg_grads")


def find_engines(optimizer: Any) -> List[Any]:
    """The engines that step this optimizer, and keep their parameters whole. Walks all objects of the process."""
    kind = _find_class()
    if kind is None:
        return []
    engines = [item for item in gc.get_objects() if issubclass(type(item), kind)]
    return [
        engine
        for engine in engines
        if getattr(engine, "basic_optimizer", None) is optimizer
        and engine.zero_optimization_stage() in STEERED_STAGES
    ]


def is_engine(root: Any) -> bool:
    """Whether this module is DeepSpeed's engine around the script's model."""
    kind = _find_class()
    return kind is not None and isinstance(root, kind)


def _find_class() -> Optional[type]:
    # A script that trains with it has imported it.
    kind = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
    return kind if isinstance(kind, type) else None


def find_group(engine: Any) -> Any:
    """The ranks that it reduces gradients over."""
    group = getattr(engine.optimizer, "dp_process_group", None)
    return torch.distributed.group.WORLD if group is None else group


def extend_phases(engine: Any) -> None:
    """Counts reductions and gathers, which the engine does around backward and the optimizer's step, as theirs."""

    def count_as(phase: int, call: Any) -> Any:
        @functools.wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            runtime = current.current_runtime
            if runtime is None:
                return call(*args, **kwargs)
            runtime.begin_phase(phase)
            try:
                return call(*args, **kwargs)
            finally:
                runtime.end_phase(phase)

        return counted

    engine.backward, engine.step = count_as(BACKWARD, engine.backward), count_as(OPTIMIZER, engine.step)


def explain_no_buckets(engine: Any) -> Optional[str]:
    """Why the size of what this engine reduces at once cannot be changed between steps, or None."""
    stage = engine.zero_optimization_stage()
    if stage not in BUCKETED_STAGES:
        return f"DeepSpeed reads reduce_bucket_size in ZeRO's stages 1 to 3; this engine runs stage {stage}."
    optimizer = engine.optimizer
    if type(optimizer).__name__ != _ZERO:
        return f"This engine keeps its gradients in a {type(optimizer).__name__}, whose buckets are fixed."
    missing = next((name for name in _NEEDED if not hasattr(optimizer, name)), None)
    if missing is not None:
        version = getattr(sys.modules.get("deepspeed"), "__version__", "of this version")
        return f"DeepSpeed {version} has no {missing} in its optimizer."
    return None


def explain_no_overlap(engine: Any) -> Optional[str]:
    """Why reductions beside the backward cannot be switched between steps, or None."""
    optimizer = engine.optimizer
    if not hasattr(optimizer, "overlap_comm"):
        version = getattr(sys.modules.get("deepspeed"), "__version__", "of this version")
        return f"DeepSpeed {version} has no overlap_comm in its optimizer."
    if not getattr(optimizer, "contiguous_gradients", False):
        return "The engine keeps gradients apart (contiguous_gradients is off), and has no second buffer for them."
    return None


def explain_no_format(engine: Any) -> Optional[str]:
    """Why the number format of its reductions cannot be changed between steps, or None."""
    if engine.fp16_enabled():
        return "The engine trains in fp16: how it scales the loss is not saved before a trial."
    buckets = engine.optimizer.ipg_buckets
    if len(buckets) != 1:
        return "The engine reduces under torch.autocast, which sets the number format of each parameter."
    kind = engine.optimizer.communication_data_type
    if kind in (torch.float16, torch.bfloat16):
        return f"The script reduces gradients in {str(kind).replace('torch.', '')} already."
    return None
