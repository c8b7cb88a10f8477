"""Models that FSDP or DeepSpeed reduces, not DDP: found through their optimizers, and described."""

from __future__ import annotations

import gc
import sys
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from .. import private_torch
from . import deepspeed

FULLY_SHARD, WRAPPER = "fully_shard", "FullyShardedDataParallel"


def find_sharded_roots(optimizer: Any) -> List[Any]:
    """The outermost sharded modules that hold this optimizer's parameters, or DeepSpeed's engine that steps it.

    They come in the order of its parameters, which is the same on every rank. Walks all objects of the process.
    """
    engines = deepspeed.find_engines(optimizer)
    kinds = _list_kinds()
    return engines if engines or not kinds else find_outermost(optimizer, kinds)


def find_outermost(optimizer: Any, kinds: Tuple[type, ...]) -> List[Any]:
    """The outermost modules of these kinds that hold this optimizer's parameters, in their order. Walks all objects."""
    owners = {id(parameter): root for root in list_outermost(kinds) for parameter in root.parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    roots = {
        id(root): root for root in (owners.get(id(parameter)) for parameter in parameters) if root is not None
    }
    return list(roots.values())


def list_outermost(kinds: Tuple[type, ...]) -> List[Any]:
    """The modules of these kinds that are part of no other one. Walks all objects."""
    modules = [item for item in gc.get_objects() if issubclass(type(item), kinds)]
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner]


def _list_kinds() -> Tuple[type, ...]:
    # A script that shards has imported them.
    wrapper = getattr(sys.modules.get("torch.distributed.fsdp"), WRAPPER, None)
    found = [wrapper, *private_torch.FULLY_SHARDED.list_loaded()]
    return tuple({kind for kind in found if isinstance(kind, type)})


def find_kind(root: Any) -> str:
    """What sharded this module."""
    if deepspeed.is_engine(root):
        return deepspeed.NAME
    return WRAPPER if type(root).__name__ == WRAPPER else FULLY_SHARD


def list_trained(root: Any) -> List[Any]:
    """Its trained parameters, each with its full size where fully_shard made it a DTensor."""
    return [parameter for parameter in root.parameters() if parameter.requires_grad]


def count_gradient_bytes(root: Any) -> int:
    """Bytes of all its gradients before they are scattered over the ranks."""
    if find_kind(root) != WRAPPER:
        return sum(parameter.numel() * parameter.element_size() for parameter in list_trained(root))
    flat = [parameter for parameter in _list_flat(root) if parameter.requires_grad]
    return sum(
        int(private_torch.UNPADDED_SIZE.of(parameter).numel()) * parameter.element_size()
        for parameter in flat
    )


def explain_unknown(root: Any) -> Optional[str]:
    """Which private name of torch is missing to measure this module; None where all are there."""
    if find_kind(root) != WRAPPER:
        return None
    missing = private_torch.explain_missing(root, (private_torch.HANDLE,))
    if missing is not None:
        return missing
    names = (private_torch.UNPADDED_SIZE,)
    return next(filter(None, (private_torch.explain_missing(flat, names) for flat in _list_flat(root))), None)


def _list_flat(root: Any) -> List[Any]:
    """What FullyShardedDataParallel made of the parameters."""
    handles = (private_torch.HANDLE.of(module) for module in type(root).fsdp_modules(root))
    return [handle.flat_param for handle in handles if handle is not None]


def find_device(root: Any) -> torch.device:
    """Where it computes; its parameters may rest in host memory meanwhile."""
    if find_kind(root) == WRAPPER:
        return torch.device(root.compute_device)
    if find_kind(root) == deepspeed.NAME:
        return list_trained(root)[0].device
    kind = _list_meshes(root)[0].device_type
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def find_group(root: Any) -> Any:
    """The process group that one copy of its parameters is sharded over."""
    if find_kind(root) == WRAPPER:
        return root.process_group
    if find_kind(root) == deepspeed.NAME:
        return deepspeed.find_group(root)
    mesh = _find_mesh(root)
    return _list_meshes(root)[0].get_group(0) if mesh is None else mesh.shard_process_group


def _list_meshes(root: Any) -> List[Any]:
    """Those that fully_shard's parameters lie on, also while they are gathered between two steps."""
    found = list_trained(root)
    if not all(hasattr(parameter, "device_mesh") for parameter in found):
        found = [each.sharded_param for group in list_all_groups([root]) for each in group.fsdp_params]
    return [parameter.device_mesh for parameter in found]


def _find_mesh(root: Any) -> Any:
    """fully_shard's own view of the mesh, None where it shards nothing or this torch hides it."""
    if explain_unknown_groups(root) is not None:
        return None
    meshes = (group.mesh_info for group in list_all_groups([root]))
    return next((mesh for mesh in meshes if mesh.shard_mesh_dim is not None), None)


def count_ranks(root: Any) -> Tuple[int, int]:
    """Ranks that share one copy of its parameters, and copies: more than one in hybrid sharding (HSDP)."""
    shared = dist.get_world_size(find_group(root))
    if find_kind(root) == WRAPPER:
        is_hybrid = "HYBRID" in root.sharding_strategy.name
        return shared, dist.get_world_size() // shared if is_hybrid else 1
    mesh = _find_mesh(root) if find_kind(root) == FULLY_SHARD else None
    return shared, getattr(mesh, "replicate_mesh_size", 1)


def count_sharers(root: Any) -> int:
    """Ranks that are given the same samples: its parameters lie on a mesh of more ranks than reduce its gradients."""
    if find_kind(root) != FULLY_SHARD:
        return 1
    shared, copies = count_ranks(root)
    ranks: int = max(mesh.size() for mesh in _list_meshes(root))
    return ranks // (shared * copies)


def count_gathered_bytes(root: Any) -> Dict[Any, int]:
    """Module that fully_shard gathers by itself -> bytes of its parameters once gathered, in their own format."""
    owners = {
        parameter: module
        for module in root.modules()
        if list_groups(module)
        for parameter in module.parameters()
    }
    found: Dict[Any, int] = {}
    for parameter, module in owners.items():
        found[module] = found.get(module, 0) + parameter.numel() * parameter.element_size()
    return found


def list_groups(module: Any) -> List[Any]:
    """What fully_shard gathers together for this module; empty for one that it left alone."""
    if not hasattr(module, "set_reshard_after_forward"):
        return []
    state = private_torch.GET_SHARDED_STATE.of(module)()
    groups = private_torch.PARAMETER_GROUPS.find(state)
    return [private_torch.PARAMETER_GROUP.of(state)] if groups is None else list(groups)


def reduces_gradients(root: Any) -> bool:
    """Whether a backward that ends now has reduced this model's gradients: not where the script puts that off
    (set_requires_gradient_sync, no_sync). Walks all of its modules."""
    if not hasattr(root, "set_requires_gradient_sync"):
        return bool(private_torch.SYNCS_GRADIENTS.find(root, True))
    if explain_unknown_groups(root) is not None:
        return True
    return any(getattr(group, "reduce_grads", True) for group in list_all_groups([root]))


def list_parts(root: Any) -> Dict[Any, Any]:
    """fully_shard's state of each module that it took -> that module, the outermost first.

    Several modules sharded together have one state; the first of them stands for all.
    """
    found: Dict[Any, Any] = {}
    for module in root.modules():
        if hasattr(module, "set_reshard_after_forward"):
            found.setdefault(private_torch.GET_SHARDED_STATE.of(module)(), module)
    return found


def list_all_groups(roots: List[Any]) -> List[Any]:
    """Everything that is gathered together in these models, each once."""
    groups = {
        id(group): group for root in roots for module in root.modules() for group in list_groups(module)
    }
    return [group for group in groups.values() if group is not None]


def explain_unknown_groups(root: Any) -> Optional[str]:
    """Which private name of torch is missing for `list_groups`; None where all are there."""
    missing = private_torch.explain_missing(root, (private_torch.GET_SHARDED_STATE,))
    if missing is not None or private_torch.PARAMETER_GROUPS.is_in(
        state := private_torch.GET_SHARDED_STATE.of(root)()
    ):
        return missing
    return private_torch.explain_missing(state, (private_torch.PARAMETER_GROUP,))


def list_inner(roots: List[Any]) -> Dict[Any, List[Any]]:
    """The sharded modules inside the roots that hold parameters of their own, each with its groups."""
    parts = [part for root in roots for part in root.modules() if part is not root]
    return {part: groups for part in parts if (groups := [g for g in list_groups(part) if g is not None])}
