"""Proof for the knobs a session was launched with: they are in force for all of its blocks, or not at all."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from ..nccl_tuner.plugin import VARIABLES as TUNED
from ..nccl_tuner.plugin import explain_no_choice, prove_choice
from .buckets.bucket_plan import MIB, BucketPlan, limit_first_bucket, plan_for_argument
from .computation.convolutions import SEARCH, WORKSPACE, prove_search
from .lever import Evidence
from .reduction.nccl_options import FIELDS

BUCKET_CAP_PLACE = 8
"""Place of bucket_cap_mb among DistributedDataParallel's arguments, for scripts that give it without its name."""
UNLIMITED = 65536
"""MB: the largest value of the workspace limit, which stands for none."""
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
VARIABLES = {WORKSPACE: "CUDNN_CONV_WSCAP_DBG", **TUNED}
"""Environment variables of knobs that have another name."""
READ_ON_GPUS = {
    ALLOCATOR: "torch's allocator reads it when it starts",
    VARIABLES[WORKSPACE]: "cuDNN reads it when it starts",
}
POLICY, POLICY_FROM = "NCCL_CTA_POLICY", (2, 27)
"""The first NCCL that reads it."""
NCCL_COUNTS = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_BUFFSIZE", POLICY, *FIELDS)


def plan_launched_cap(cold: Mapping[str, Any]) -> Optional[float]:
    """The `bucket_cap_mb` that DistributedDataParallel is built with, or None to leave the script's own."""
    if cold.get("fuse_all_reduce_ops") is False:
        return 1 / MIB
    cap = cold.get("fuse_grad_size_in_MB")
    return float(cap) if cap is not None else None


def replace_cap(
    cold: Mapping[str, Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Tuple[Dict[str, Any], Optional[BucketPlan]]:
    """The named arguments that DistributedDataParallel is built with; the script's own plan where that is replaced."""
    cap = plan_launched_cap(cold)
    if cap is None or len(args) >= BUCKET_CAP_PLACE or "bucket_cap_mb_list" in kwargs:
        return kwargs, None
    own = plan_for_argument(kwargs.get("bucket_cap_mb"))
    limit_first_bucket(int(cap * MIB))
    return {**kwargs, "bucket_cap_mb": cap}, own


def refuse_launched(cold: Mapping[str, Any]) -> Dict[str, str]:
    """Knobs of the launch that cannot be set here, or that the job has set itself in a way that no value of ours could
    stand beside."""
    refused: Dict[str, str] = {}
    version = torch.cuda.nccl.version() if dist.is_nccl_available() else None
    reason = explain_no_choice(version)
    if reason is not None:
        refused.update(dict.fromkeys(TUNED, reason))
    own_policy = os.environ.get(POLICY, "0") if POLICY not in cold else "0"
    if version is not None and tuple(version[:2]) < POLICY_FROM:
        found = ".".join(map(str, version))
        refused[POLICY] = (
            f"NCCL {found} has no policy for thread blocks: use a torch with NCCL 2.27 or later."
        )
    elif own_policy not in ("0", "1"):
        refused[POLICY] = f"The job sets {POLICY}={own_policy} itself; it is left as it is."
    own = [name for name in ("PYTORCH_ALLOC_CONF", ALLOCATOR) if name in os.environ and ALLOCATOR not in cold]
    if own:
        refused[ALLOCATOR] = f"The job sets {own[0]} itself; it is left as it is."
    return refused


def observe_launched(cold: Mapping[str, Any]) -> Dict[str, Any]:
    """The baseline of the launch's knobs: what the job's own environment says where it says anything."""
    observed: Dict[str, Any] = {WORKSPACE: UNLIMITED}
    if SEARCH not in cold:
        observed[SEARCH] = bool(torch.backends.cudnn.benchmark)
    for knob in (WORKSPACE, *NCCL_COUNTS):
        text = os.environ.get(VARIABLES.get(knob, knob), "")
        if knob not in cold and text.isdigit():
            observed[knob] = int(text)
    return observed


def prove_launched(
    cold: Mapping[str, Any], backend: str, device: torch.device, replicas: List[Any]
) -> Evidence:
    """Environment knobs: the rank has the value and something that reads it. Bucket size: DDP was built with it."""
    evidence = Evidence()
    for knob, value in cold.items():
        variable = VARIABLES.get(knob, knob)
        if knob in ("fuse_all_reduce_ops", "fuse_grad_size_in_MB"):
            caps = {int(ddp.bucket_bytes_cap) for ddp in replicas}
            cap = plan_launched_cap(cold)
            if cap is None or caps == {int(cap * MIB)}:
                evidence.consumed[knob] = (
                    f"DistributedDataParallel was built with caps of {sorted(caps)} bytes."
                )
            else:
                evidence.not_consumed[knob] = f"DistributedDataParallel has caps of {sorted(caps)} bytes."
        elif knob == SEARCH:
            proved, sentence = prove_search(value)
            (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence
        elif knob in TUNED:
            proved, sentence = prove_choice(knob, value)
            (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence
        elif not variable.startswith("NCCL_") and variable not in READ_ON_GPUS:
            evidence.not_consumed[knob] = (
                f"{knob} cannot be set at launch by this runtime; give it as an override."
            )
        elif os.environ.get(variable) != _write(value):
            evidence.not_consumed[knob] = (
                f"{variable} is {os.environ.get(variable)!r} in this rank's environment."
            )
        elif variable.startswith("NCCL_") and "nccl" not in backend:
            evidence.not_consumed[knob] = f"The backend is {backend}, which does not read {knob}."
        elif variable in READ_ON_GPUS and device.type != "cuda":
            evidence.not_consumed[knob] = f"The job trains on CPU, where nothing reads {variable}."
        else:
            reader = READ_ON_GPUS.get(variable, f"the backend is {backend}")
            evidence.consumed[knob] = f"{variable}={_write(value)} in the rank's environment; {reader}."
    return evidence


def _write(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
