"""Which knobs of buckets and of their reduction a model cannot use, alone or beside others, each with its sentence."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import torch
import torch.distributed as dist

from ...backends import find_backend
from ..buckets import bucket_plan
from ..buckets.bucket_plan import BucketPlan
from ..buckets.layer_buckets import explain_no_layers, explain_no_list
from . import reduction_plan
from .communicators import explain_no_order
from .low_rank_reduction import explain_no_compression
from .reducer import explain_no_rebuild, find_talk_in_backward, keeps_state

CUT = "The script compiles its model, and torch.compile cut the graph where the script's buckets end (optimize_ddp)."
KEEPS = "The script's own communication hook may keep something for every bucket: others would break it."
BOTH = bucket_plan.KNOBS + reduction_plan.KNOBS


def refuse_knobs(
    ddp: Any,
    baseline: BucketPlan,
    has_own_hook: bool,
    is_cut_at_buckets: bool,
    unsupported: Mapping[str, str],
    device: torch.device,
) -> Dict[str, str]:
    """Of one model. `unsupported` are the 16-bit formats that its backend does not reduce, each with its reason."""
    refusals: Dict[str, str] = {}
    reason = explain_no_rebuild(ddp)
    if reason is not None:
        refusals.update(dict.fromkeys(BOTH, reason))
    else:
        found = {bucket_plan.LAYERS: explain_no_layers(ddp), bucket_plan.LISTED: explain_no_list(ddp)}
        refusals.update({knob: reason for knob, reason in found.items() if reason is not None})
    if not hasattr(ddp, bucket_plan.BATCHED):
        refusals.setdefault(
            bucket_plan.BATCHED, "DistributedDataParallel copies gradients together from torch 2.12 on."
        )
    if is_cut_at_buckets:
        refusals.update(dict.fromkeys(bucket_plan.LIVE_ONLY, CUT))
    if has_own_hook:
        sentence = "The script registered a communication hook of its own, which these knobs would replace."
        refusals.update(dict.fromkeys(reduction_plan.KNOBS, sentence))
    if keeps_state(ddp):
        refusals.update(dict.fromkeys(bucket_plan.KNOBS, KEEPS))
    if baseline.listed_bytes:
        sentence = "The script sets its buckets one by one (bucket_cap_mb_list); they are left as they are."
        refusals.update(dict.fromkeys(bucket_plan.KNOBS, sentence))
    world_size = dist.get_world_size()
    if dist.get_world_size(ddp.process_group) != world_size:
        sentence = (
            "The model reduces over a part of the ranks only; further communicators cannot be made for it."
        )
        refusals.update(dict.fromkeys((*reduction_plan.GROUPED, *reduction_plan.COMPRESSION), sentence))
    backend = find_backend(ddp.process_group, device)
    reason = explain_no_order(backend)
    if reason is not None:
        refusals["nccl_comm_num"] = reason
    talk = find_talk_in_backward(ddp) if backend == "nccl" else None
    if talk is not None:
        refusals[reduction_plan.BETWEEN] = (
            f"A thread of its own would hand buckets over while {talk} communicates as well, in another order on "
            "each rank: NCCL's communicators would wait for each other for ever."
        )
    if not any(1 < size < world_size and world_size % size == 0 for size in range(2, 1025)):
        sentence = f"{world_size} ranks cannot be split into two levels of at least 2."
        refusals.update(dict.fromkeys(reduction_plan.LEVELS, sentence))
    reason = explain_no_compression(ddp)
    if reason:
        for knob in reduction_plan.COMPRESSION:
            refusals.setdefault(knob, reason)
    if len(unsupported) == len(reduction_plan.FORMATS):
        refusals.setdefault("fp16_allreduce", f"The backend reduces no 16-bit format: {unsupported['fp16']}")
        refusals.setdefault("fp16_allreduce_dtype", refusals["fp16_allreduce"])
    return refusals


def refuse_together(replicas: List[Any], device: torch.device) -> Dict[str, str]:
    """Of models that train side by side. Over one process group of the script they share its one order."""
    groups = {id(ddp.process_group): ddp.process_group for ddp in replicas}
    if len(groups) < 2 or all(find_backend(group, device) != "nccl" for group in groups.values()):
        return {}
    sentence = (
        f"The script's models reduce over {len(groups)} process groups: a thread for each would hand buckets over in "
        "another order on each rank, and NCCL's communicators would wait for each other for ever."
    )
    return {reduction_plan.BETWEEN: sentence}
