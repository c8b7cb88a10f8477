"""What to write into the script itself for a knob, where PyTorch or what shards the model has words for it."""

from collections.abc import Mapping

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.sharding import DEEPSPEED

BUCKETS = ("fuse_all_reduce_ops", "fuse_grad_size_in_MB", "last_comm_group_size_MB", "bucket_cap_mb_list")
WIRE = ("fp16_allreduce", "fp16_allreduce_dtype")
_OF_THE_ENGINE = ("fuse_grad_size_in_MB", *WIRE, "sharding_overlap")
_ENGINE = "DeepSpeed's engine reduces the gradients: merge ds_config.json (export deepspeed) into its configuration."
DTYPES: Mapping[str, str] = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
_LINES: Mapping[str, str] = {
    "find_unused_parameters": "give DistributedDataParallel find_unused_parameters={value}. Should a step leave out a "
    "parameter after all, DDP then ends the training with an error; under `advisor run` it goes on.",
    "broadcast_buffers": "build buffers alike on all ranks and give DistributedDataParallel broadcast_buffers={value}, "
    "which sends none when it is built either (forward_sync_buffers={value} of torch 2.13 does).",
    "batched_grad_copy": "give DistributedDataParallel batched_grad_copy={value} (torch 2.13).",
    "numa_binding": "launch GPU ranks with torchrun --numa-binding {value} (torch 2.9, numactl installed); ranks that "
    "compute on CPUs are bound under run.sh and `advisor run` only.",
    "bucket_cap_mb_list": "give DistributedDataParallel bucket_cap_mb_list={value} (torch 2.12).",
    "fuse_grad_size_in_TFLOPS": "give DistributedDataParallel a bucket_cap_mb_list (torch 2.12) that holds the bytes "
    "of {value:g} layers each time, in the order in which gradients become ready.",
    "fuse_all_optimizer_ops": "build the optimizers with fused={value}; where one has no such argument, with "
    "foreach={value}.",
    "batch_size_multiple": "multiply the training loader's batch size by {value}; an epoch then has that many times "
    "fewer steps, also for schedules that count them.",
    "micro_batches": "cut each batch into {value} parts; run forward and backward of each, with its loss divided by "
    "{value}, all but the last under ddp.no_sync(), and step after the last one.",
    "hierarchical_allreduce_gloo_between": "give the upper level's groups backend='gloo' (new_group), and hand buckets "
    "over in a thread of their own.",
    "num_iteration_per_run": "record a torch.cuda.Event after every step, and synchronize() with the one of {value} "
    "steps before.",
    "sharding_gather_ranks": "give fully_shard(..., reshard_after_forward={value}) for each layer.",
    "sharding_forward_prefetch": "call set_modules_to_forward_prefetch() on each sharded module with the {value} after "
    "it.",
    "sharding_backward_prefetch": "call set_modules_to_backward_prefetch() on each sharded module with the {value} "
    "before it.",
    "sharding_separate_reduction": "call set_separate_reduce_scatter_group({value}) on the sharded model.",
    "sharding_reduce_buffers": "call set_reduce_scatter_max_input_buffers({value}) on the sharded model.",
    "sharding_group_memory": "call set_allocate_memory_from_process_group_for_comm({value}) on each sharded module.",
}


def describe_by_hand(name: str, values: Mapping[str, Value]) -> str:
    """Return what to write where in the script itself for a knob; empty where PyTorch has no line for it."""
    line = ""
    if name in _LINES:
        value = values[name] if name not in BUCKETS else spell_list(values)
        line = _LINES[name].format(value=value)
    elif name in CATALOGUE and CATALOGUE[name].place is Place.DATA_READING:
        argument = f"{name.removeprefix('loader_')}={values[name]!r}"
        line = f"give DataLoader(..., {argument}) for the training."
    elif name == "sharding_stage":
        again = values[name] == 3
        line = f"call set_reshard_after_forward({again}, recurse=False) on each sharded layer."
    elif name in ("gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg"):
        steps = values["gradient_merge_k_steps"]
        share = f", each loss divided by {steps}" if values["gradient_merge_avg"] else ""
        line = (
            f"of every {steps} steps run all but the last under ddp.no_sync(){share}, and clip gradients, call "
            "optimizer.step() and zero_grad() after the last one only."
        )
    return f"Apply by hand: {line}" if line else ""


def describe_reduction(name: str, values: Mapping[str, Value], job: Job) -> str:
    """Return what to write where for how gradients are reduced; empty for another knob, and for DDP models."""
    kind = job.facts.sharding if job.facts is not None else ""
    if kind == DEEPSPEED:
        return _ENGINE if name in _OF_THE_ENGINE else ""
    if not kind or name not in WIRE:
        return ""
    dtype = DTYPES[str(values["fp16_allreduce_dtype"])] if values["fp16_allreduce"] else "None"
    return (
        f"Apply by hand: give each fully_shard(...) mp_policy=MixedPrecisionPolicy(reduce_dtype={dtype}); the model is "
        "sharded, and DistributedDataParallel's hooks do not act on it. Where the script accumulates gradients "
        "(set_requires_gradient_sync(False)), that policy also adds the micro-batches up in 16 bits, each with a "
        "rounding of its own; `advisor run` does not, and only that was measured."
    )


def spell_list(values: Mapping[str, Value]) -> str:
    """Return DDP's `bucket_cap_mb_list` as Python writes it; empty where the strategy gives buckets no size each."""
    sizes = str(values["bucket_cap_mb_list"])
    return f"[{sizes.replace('+', ', ')}]" if sizes and values["fuse_all_reduce_ops"] else ""


def find_buckets(values: Mapping[str, Value]) -> tuple[float, float]:
    """Return DDP's bucket capacity and that of the bucket which is ready first, in MB.

    One byte (2**-20 MB) gives every parameter a bucket of its own.
    """
    if not values["fuse_all_reduce_ops"]:
        return 2.0**-20, 2.0**-20
    size = float(values["fuse_grad_size_in_MB"])
    return size, min(float(values["last_comm_group_size_MB"]), size)
