"""What the knobs of a sharded model are called in fully_shard's own words, for scripts that are changed by hand."""

from collections.abc import Mapping

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value

STAGE, GATHER = "sharding_stage", "sharding_gather_ranks"
AHEAD, BACK = "sharding_forward_prefetch", "sharding_backward_prefetch"
SEPARATE, BUFFERS, MEMORY = (
    "sharding_separate_reduction",
    "sharding_reduce_buffers",
    "sharding_group_memory",
)
HALF, HALF_TYPE = "fp16_allreduce", "fp16_allreduce_dtype"
AFTERWARDS = (STAGE, AHEAD, BACK, SEPARATE, BUFFERS, MEMORY)
"""What can be set once the model is sharded."""
ARGUMENTS = (GATHER, HALF, HALF_TYPE)
"""What fully_shard itself is told."""
DTYPES: Mapping[str, str] = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
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
    """Return what to write where for the number format of reductions; empty for another knob, and for DDP models."""
    if name not in (HALF, HALF_TYPE) or job.facts is None or not job.facts.sharding:
        return ""
    kind = DTYPES[str(values[HALF_TYPE])] if values[HALF] else "None"
    return (
        f"Apply by hand: give each fully_shard(...) mp_policy=MixedPrecisionPolicy(reduce_dtype={kind}); the model is "
        "sharded, and DistributedDataParallel's hooks do not act on it."
    )
