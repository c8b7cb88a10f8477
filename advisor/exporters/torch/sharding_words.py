"""What knobs are called where DDP does not reduce: in fully_shard's words and DeepSpeed's, for changes by hand."""

from collections.abc import Mapping

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.sharding import DEEPSPEED

STAGE, GATHER = "sharding_stage", "sharding_gather_ranks"
AHEAD, BACK = "sharding_forward_prefetch", "sharding_backward_prefetch"
SEPARATE, BUFFERS, MEMORY = (
    "sharding_separate_reduction",
    "sharding_reduce_buffers",
    "sharding_group_memory",
)
OVERLAP = "sharding_overlap"
SIZE = "fuse_grad_size_in_MB"
HALF, HALF_TYPE = "fp16_allreduce", "fp16_allreduce_dtype"
AFTERWARDS = (STAGE, AHEAD, BACK, SEPARATE, BUFFERS, MEMORY)
"""What can be set once the model is sharded."""
ARGUMENTS = (GATHER, HALF, HALF_TYPE)
"""What fully_shard itself is told."""
DTYPES: Mapping[str, str] = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
_ENGINE = "DeepSpeed's engine reduces the gradients: merge ds_config.json (export deepspeed) into its configuration."
_BY_HAND: Mapping[str, str] = {
    GATHER: "Apply by hand: give fully_shard(..., reshard_after_forward={value}) for each layer.",
    AHEAD: "Apply by hand: call set_modules_to_forward_prefetch() on each sharded module with the {value} after it.",
    BACK: "Apply by hand: call set_modules_to_backward_prefetch() on each sharded module with the {value} before it.",
    SEPARATE: "Call set_separate_reduce_scatter_group({value}) on the sharded model by hand.",
    BUFFERS: "Call set_reduce_scatter_max_input_buffers({value}) on the sharded model by hand.",
    MEMORY: "Call set_allocate_memory_from_process_group_for_comm({value}) on each sharded module by hand.",
}


def describe_sharding(name: str, values: Mapping[str, Value]) -> str:
    """Return what to write where for a knob of sharded models; empty for another one."""
    if name == STAGE:
        again = values[name] == 3
        return f"Call set_reshard_after_forward({again}, recurse=False) on each sharded layer by hand."
    return _BY_HAND.get(name, "").format(value=values[name])


def describe_reduction(name: str, values: Mapping[str, Value], job: Job) -> str:
    """Return what to write where for how gradients are reduced; empty for another knob, and for DDP models."""
    kind = job.facts.sharding if job.facts is not None else ""
    if kind == DEEPSPEED:
        return _ENGINE if name in (SIZE, HALF, HALF_TYPE, OVERLAP) else ""
    if not kind or name not in (HALF, HALF_TYPE):
        return ""
    kind = DTYPES[str(values[HALF_TYPE])] if values[HALF] else "None"
    return (
        f"Apply by hand: give each fully_shard(...) mp_policy=MixedPrecisionPolicy(reduce_dtype={kind}); the model is "
        "sharded, and DistributedDataParallel's hooks do not act on it."
    )
