"""Engines that reduce gradients by themselves, beside DistributedDataParallel and fully_shard: named, not steered."""

from __future__ import annotations

import gc
import sys

ENGINES = {
    ("deepspeed.runtime.engine", "DeepSpeedEngine"): "DeepSpeed's engine",
    ("megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel"): (
        "Megatron's own DistributedDataParallel"
    ),
    ("colossalai.booster.booster", "Booster"): "ColossalAI's booster",
    ("apex.parallel.distributed", "DistributedDataParallel"): "Apex's own DistributedDataParallel",
}
"""Module and class of each, with its name in a sentence."""


def find_engine() -> str:
    """The engine that lives in this process, "" for none. Walks all objects where one was imported."""
    for (module, name), sentence in ENGINES.items():
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and any(issubclass(type(item), kind) for item in gc.get_objects()):
            return sentence
    return ""
