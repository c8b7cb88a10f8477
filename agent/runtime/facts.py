"""What the agent learns in the hello: facts about the job, and the baseline as the script set it."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch
from torch.utils.data import IterableDataset

from . import private_torch
from .backends import find_backend, find_place
from .levers.buckets.bucket_plan import MIB, BucketPlan
from .levers.lever import Training
from .levers.reduction.reducer import has_own_hook
from .levers.script_compilation import is_compiled_by_script
from .link.environment import Environment
from .observe.reduced import list_reduced
from .observe.sharded import count_gradient_bytes as count_sharded_bytes
from .observe.sharded import count_ranks, find_device, find_group, find_kind, list_trained
from .observe.sources import digest_own_sources
from .observe.torchrec import NAME as TORCHREC
from .observe.torchrec import has_tables

LOOPS = {
    "transformers": "transformers.trainer",
    "lightning": "lightning.pytorch.trainer.trainer",
    "pytorch_lightning": "pytorch_lightning.trainer.trainer",
}
"""Frameworks that run the loop for a script, each with the module that a step is called from."""


READERS = ("nvidia.dali", "torchdata.nodes")
"""Modules that are there only where what they read takes a DataLoader's place."""


def find_frameworks(modules: Mapping[str, Any]) -> Dict[str, str]:
    """The framework at work in this process with its version; nothing where the script does everything itself.

    It is called from inside a step. That a module was imported proves nothing: a model of transformers brings
    accelerate along.
    """
    running = _list_running_files()
    for name, loop in LOOPS.items():
        if loop in modules and name in modules and modules[loop].__file__ in running:
            return _find_version(name, modules)
    if "deepspeed" in modules and "deepspeed.runtime.engine" in modules:
        return _find_version("deepspeed", modules)
    has_accelerator = getattr(modules.get("accelerate.state"), "is_initialized", bool)
    return _find_version("accelerate", modules) if has_accelerator() else {}


def _list_running_files() -> Set[str]:
    return {frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)}


def _find_version(name: str, modules: Mapping[str, Any]) -> Dict[str, str]:
    """By its own module, or the one that it is a part of; nothing where it is not there."""
    homes = [modules[home] for home in (name, name.partition(".")[0]) if home in modules]
    found = next((home.__version__ for home in homes if hasattr(home, "__version__")), "")
    return {name: str(found)} if name in modules else {}


def count_gradient_bytes(ddp: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in list_reduced(ddp))


def locate(replicas: List[Any], sharded: List[Any], plain: List[Any]) -> Tuple[torch.device, str]:
    """The device that the job computes on, and the backend that it communicates over: none where nothing does."""
    if plain and not replicas and not sharded:
        return list_trained(plain[0])[0].device, ""
    device = list_reduced(replicas[0])[0].device if replicas else find_device(sharded[0])
    group = replicas[0].process_group if replicas else find_group(sharded[0])
    return device, find_backend(group, device)


def gather_facts(
    environment: Environment,
    training: Training,
    loader: Optional[Dict[str, Any]],
    samples_per_step: int,
    forwards_per_step: int,
    step_time_s: float,
) -> Dict[str, Any]:
    """Plain JSON. With several models sizes are summed; the largest DDP model speaks for the rest."""
    replicas, sharded, plain = training.replicas, training.sharded, training.plain
    device, backend = locate(replicas, sharded, plain)
    parameters = [parameter for ddp in replicas for parameter in list_reduced(ddp)]
    parameters += [parameter for root in (*sharded, *plain) for parameter in list_trained(root)]
    modules = training.list_modules()
    largest = max(parameters, key=lambda parameter: parameter.numel() * parameter.element_size())
    world_size, local_world_size = find_place()[1], environment.local_world_size
    threads = torch.get_num_threads()
    return {
        "backend": backend,
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or "cpu",
        "world_size": world_size,
        "local_world_size": local_world_size,
        "nodes": -(-world_size // max(1, local_world_size)),
        "gradient_bytes": sum(map(count_gradient_bytes, replicas))
        + sum(map(count_sharded_bytes, (*sharded, *plain))),
        "gradient_dtype": str(main_dtype(parameters)).replace("torch.", ""),
        "parameter_tensors": len(parameters),
        "layers": sum(1 for module in modules if next(module.parameters(recurse=False), None) is not None),
        "sparse_gradients": any(
            isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse for m in modules
        ),
        "has_batch_norm": any(map(private_torch.is_batch_norm, modules)),
        "largest_parameter_bytes": largest.numel() * largest.element_size(),
        "batch_size_per_rank": samples_per_step,
        "microbatches_per_step": forwards_per_step,
        "optimizers": [type(optimizer).__name__ for optimizer in training.optimizers],
        "ddp": _describe_ddp(replicas) if replicas else {},
        "sharding": find_kind(sharded[0]) if sharded else "",
        **_describe_sharding(sharded),
        "dataloader": loader,
        "sources": digest_own_sources(sys.modules, environment.control) if environment.control else {},
        "torch_version": torch.__version__,
        "python_version": platform.python_version(),
        "software": {
            **find_frameworks(sys.modules),
            **(_find_version(TORCHREC, sys.modules) if has_tables(modules) else {}),
            **{name: found for each in READERS for name, found in _find_version(each, sys.modules).items()},
        },
        "step_time_s_hint": step_time_s,
        "cpu_threads": threads,
        "sets_threads": os.environ.get("OMP_NUM_THREADS", str(threads)).split(",")[0] != str(threads),
    }


def _describe_ddp(replicas: List[Any]) -> Dict[str, bool]:
    main = max(replicas, key=count_gradient_bytes)
    return {
        "static_graph": bool(main.static_graph),
        "find_unused_parameters": bool(main.find_unused_parameters),
        "gradient_as_bucket_view": bool(main.gradient_as_bucket_view),
        "own_comm_hook": any(has_own_hook(ddp) for ddp in replicas),
        "reduces_one_by_one": private_torch.PYTHON_REDUCER.find(main, False)
        and not is_compiled_by_script(main),
    }


def _describe_sharding(sharded: List[Any]) -> Dict[str, int]:
    ranks, copies = count_ranks(max(sharded, key=count_sharded_bytes)) if sharded else (0, 0)
    return {"shard_ranks": ranks, "shard_copies": copies}


def main_dtype(parameters: List[torch.Tensor]) -> torch.dtype:
    """The number format of most gradient bytes."""
    sizes: Dict[torch.dtype, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel() * parameter.element_size()
    return max(sizes, key=lambda dtype: sizes[dtype])


def gather_baseline(plan: BucketPlan, local_world_size: int) -> Dict[str, Any]:
    """The knobs as the script has them, observed in the live process."""
    return {
        "fuse_all_reduce_ops": plan.is_fused,
        "fuse_grad_size_in_MB": plan.cap_bytes / MIB,
        "last_comm_group_size_MB": plan.first_bytes / MIB,
        "sync_nccl_allreduce": False,
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": local_world_size,
        "localsgd": False,
        "localsgd_k_steps": 1,
        "localsgd_begin_step": 1,
        "fp16_allreduce": False,
        "fp16_allreduce_dtype": "fp16",
    }


def describe_loader(loader: Any) -> Dict[str, Any]:
    """What of a DataLoader bears on reading speed."""
    return {
        "num_workers": int(loader.num_workers),
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "iterable": isinstance(loader.dataset, IterableDataset),
        "stateful": type(loader).__module__.startswith("torchdata.stateful_dataloader"),
    }
