"""Rebuilds a DistributedDataParallel's reducer in place, with new buckets and another communication hook.

Private torch calls live here only. They are feature-detected; where one is missing a new session is asked for.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Optional

import torch.distributed as dist

from ..lever import RelaunchNeeded
from ..reduction.reduction_hook import reduce_bucket
from .bucket_plan import BucketPlan

SAMPLED_ITERATIONS = 11
"""DDP times a new reducer's first ten iterations whatever the sample rate, and on CUDA waits for the device then."""
HELPER_ARGUMENTS = ["parameters", "expect_sparse_gradient", "param_to_name_mapping", "static_graph"]


def explain_no_rebuild(ddp: Any) -> Optional[str]:
    """Why this model's reducer cannot be rebuilt in a live process, or None when it can."""
    if getattr(ddp, "_use_python_reducer", False):
        return "torch.compile's python_reducer mode keeps no bucket plan that could be changed in a live process."
    if getattr(ddp, "mixed_precision", None) is not None:
        return "DistributedDataParallel(mixed_precision=…) keeps state in its reducer that cannot be carried over."
    if getattr(ddp, "_delay_all_reduce_all_params", False) or getattr(ddp, "_delay_all_reduce_params", None):
        return "The script delays all-reduces of some parameters (delay_all_reduce_named_params)."
    if any(hasattr(p, "_in_backward_optimizers") for p in ddp._module_parameters):
        return "The optimizer runs inside backward (apply_optimizer_in_backward), tied to this reducer."
    if not hasattr(ddp, "_comm_hooks") and has_own_hook(ddp) and _find_builtin_hook(ddp) is None:
        return "This torch keeps no record of the script's communication hook, so it could not be registered again."
    for name in ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_ddp_init_helper"):
        if not hasattr(ddp, name):
            return f"This torch has no DistributedDataParallel.{name}; buckets can be set only at launch."
    given = list(inspect.signature(ddp._ddp_init_helper).parameters)
    if given != HELPER_ARGUMENTS:
        return f"This torch's DDP init helper takes {given}, which the runtime does not know."
    return None


def rebuild_reducer(
    ddp: Any, plan: BucketPlan, state: Any = None, hook: Any = None, keeps_old: bool = False
) -> None:
    """Runs DDP's own init helper again for another reducer. Call between steps, on every rank alike.

    `hook` replaces the script's own communication hooks when given; otherwise those are registered again, since a hook
    lives in the reducer. With `keeps_old` the reducer before lives on beside the new one (see `live_reducer`).
    """
    reason = explain_no_rebuild(ddp)
    if reason is not None:
        raise RelaunchNeeded(reason)
    builtin_hook = _find_builtin_hook(ddp)
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    if not keeps_old:
        # The logger holds the reducer too: both must go before the new one hooks the same gradient accumulators.
        ddp.logger = None
        ddp.reducer = None
    _set_plan(ddp, plan)
    usual_first_bytes = dist._DEFAULT_FIRST_BUCKET_BYTES
    try:
        # torch before 2.12 reads the first bucket's size from this module constant.
        dist._DEFAULT_FIRST_BUCKET_BYTES = plan.first_bytes
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = usual_first_bytes
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    if hook is not None:
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, state, hook)
        return
    for own_hook, own_state in getattr(ddp, "_comm_hooks", []):
        ddp.logger._set_comm_hook_name(own_hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, own_state, own_hook)
    if builtin_hook is not None:
        ddp._register_builtin_comm_hook(builtin_hook)


def has_own_hook(ddp: Any) -> bool:
    """Whether the script registered a communication hook (torch before 2.2 tells it by its name only)."""
    if hasattr(ddp, "_comm_hooks") and ddp._comm_hooks:
        return True
    return str(ddp._get_ddp_logging_data().get("comm_hook", "")) not in ("", reduce_bucket.__qualname__)


def _find_builtin_hook(ddp: Any) -> Any:
    name = str(ddp._get_ddp_logging_data().get("comm_hook", ""))
    builtin = getattr(dist, "BuiltinCommHookType", None)
    if builtin is None or not name.startswith("BuiltinCommHookType."):
        return None
    return getattr(builtin, name.split(".", 1)[1], None)


def _set_plan(ddp: Any, plan: BucketPlan) -> None:
    ddp.bucket_bytes_cap = plan.cap_bytes
    ddp.bucket_bytes_cap_default = plan.first_bytes != plan.cap_bytes
    config = getattr(ddp, "_bucket_config", None)
    if config is not None:
        ddp._bucket_config = dataclasses.replace(
            config,
            bucket_bytes_cap=plan.cap_bytes,
            first_bucket_bytes_cap=plan.first_bytes,
            per_bucket_bytes_caps=plan.listed_bytes,
        )
        ddp.bucket_bytes_cap_list = list(plan.listed_bytes)
