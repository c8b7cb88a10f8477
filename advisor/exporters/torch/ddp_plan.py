"""What an advised strategy means for PyTorch's DistributedDataParallel: the same things the trials did.

Only changed knobs are translated: whatever did not change is the script's own business.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.exporters.launch.environment import IN_RANKS
from advisor.exporters.selection import idle_because, typed_values
from advisor.exporters.torch.sharding_words import describe_reduction, describe_sharding
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.environment import TUNER
from advisor.protocol.knobs.knob import Place

BUCKETS = frozenset({"fuse_all_reduce_ops", "fuse_grad_size_in_MB", "last_comm_group_size_MB"})
REDUCTION = frozenset(
    {
        "nccl_comm_num",
        "sync_nccl_allreduce",
        "use_hierarchical_allreduce",
        "hierarchical_allreduce_inter_nranks",
    }
)
WIRE = frozenset({"fp16_allreduce", "fp16_allreduce_dtype"})
LOCAL = frozenset({"localsgd", "localsgd_k_steps", "localsgd_begin_step"})
PRECISION = frozenset({"amp", "amp_dtype", "amp_dynamic_loss_scaling", "amp_init_loss_scaling"})
COMPRESSION = frozenset({"dgc", "dgc_rank"})
MERGE = frozenset({"gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg"})
ADAPTIVE = frozenset({"adaptive_localsgd", "adaptive_localsgd_init_k_steps", "adaptive_localsgd_begin_step"})
PROCESS = frozenset({"num_threads", "cudnn_exhaustive_search", "num_iteration_per_drop_scope"})
"""What concerns a whole process, whatever is in it."""
MEMORY = "FLAGS_fraction_of_gpu_memory_to_use"
FUSION = frozenset({"fuse_elewise_add_act_ops", "fuse_bn_act_ops"})
BATCH_NORM = "sync_batch_norm"
KERNELS = FUSION | {BATCH_NORM}
EXPRESSED = tuple(
    name
    for name in CATALOGUE
    if name in BUCKETS | REDUCTION | WIRE | LOCAL | PRECISION | COMPRESSION | KERNELS | PROCESS | {MEMORY}
)
"""Knobs that a DDP script can take, in the catalogue's order."""


NCCL_FIELDS: Mapping[str, str] = {
    "NCCL_MIN_CTAS": "min_ctas",
    "NCCL_MAX_CTAS": "max_ctas",
    "NCCL_CGA_CLUSTER_SIZE": "cga_cluster_size",
}
"""What torch calls NCCL's settings of one communicator."""
BY_HAND: Mapping[str, str] = {
    "fuse_grad_size_in_TFLOPS": "give DistributedDataParallel a bucket_cap_mb_list (torch 2.12) that holds the bytes "
    "of {value:g} layers each time, in the order in which gradients become ready.",
    "fuse_all_optimizer_ops": "build the optimizers with fused={value}; where one has no such argument, with "
    "foreach={value}.",
    "batch_size_multiple": "multiply the training loader's batch size by {value}; an epoch then has that many times "
    "fewer steps, also for schedules that count them.",
    "hierarchical_allreduce_gloo_between": "give the upper level's groups backend='gloo' (new_group), and hand buckets "
    "over in a thread of their own.",
    "num_iteration_per_run": "record a torch.cuda.Event after every step, and synchronize() with the one of {value} "
    "steps before.",
}
"""What plain PyTorch has a line for, but no place outside the script."""


@dataclass
class DdpPlan:
    """What to do in a DDP script; None means: leave it as the script has it."""

    bucket_mb: float | None = None
    """Bucket capacity; one byte (2**-20 MB) gives every parameter a bucket of its own."""
    first_bucket_mb: float | None = None
    """Capacity of the bucket that is ready first."""
    communicators: int = 1
    inner_ranks: int = 0
    """Ranks of the lower level of a two-level allreduce; 0 is flat."""
    in_order: bool = False
    """One bucket after another."""
    wire_dtype: str | None = None
    """fp16 or bf16; None sends gradients as they are."""
    refuses_bf16: bool = False
    """DDP takes its stock bf16 hook with NCCL only."""
    local_steps: int | None = None
    """Steps between two parameter averagings."""
    local_begin: int = 1
    """Step up to which gradients are still averaged, counted from 1."""
    autocast_dtype: str | None = None
    """16-bit type of the training forwards; None leaves them as the script has them."""
    compression_rank: int | None = None
    """Rank to which PowerSGD compresses gradients; None sends them whole."""
    process: dict[str, Value] = field(default_factory=dict)
    """Changed knobs of `PROCESS`."""
    memory_fraction: float | None = None
    sync_batch_norm: bool = False
    compiled: bool = False
    provenance: dict[str, Provenance] = field(default_factory=dict)
    unmapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def needs_reduction(self) -> bool:
        """Whether the plan needs a communication hook that stock PyTorch does not have."""
        own_wire = self.wire_dtype == "bf16" and self.refuses_bf16
        return self.communicators > 1 or bool(self.inner_ranks) or self.in_order or own_wire

    @property
    def is_empty(self) -> bool:
        """Whether the script stays exactly as it is."""
        return not self.provenance


def plan_ddp(advice: Advice, job: Job) -> DdpPlan:
    """Return what a DDP script has to do for the advised strategy, and what it cannot do."""
    plan = DdpPlan()
    values = typed_values(advice)
    active = [name for name in advice.changes if name in CATALOGUE and idle_because(name, values) is None]
    for name in active:
        if sharded := describe_reduction(name, values, job):
            plan.unmapped[name] = sharded
        elif name in EXPRESSED:
            plan.provenance[name] = advice.provenance.get(name, Provenance.TRANSLATED)
        elif name in TUNER:
            plan.unmapped[name] = IN_RANKS
        elif CATALOGUE[name].place is Place.ENVIRONMENT or CATALOGUE[name].launch_variable:
            plan.unmapped[name] = (
                "It is read from the environment when the ranks start: use the env or torchrun export."
                + _describe_options(name, values[name])
            )
        elif by_hand := describe_by_hand(name, values):
            plan.unmapped[name] = by_hand
        else:
            plan.unmapped[name] = (
                f"PyTorch has nothing like it: {CATALOGUE[name].meaning[0].lower()}"
                + (CATALOGUE[name].meaning[1:])
            )
    _plan_buckets(plan, advice)
    _plan_reduction(plan, advice, job)
    _plan_precision(plan, values)
    _plan_compression(plan, values, job)
    if "localsgd" in active or (values["localsgd"] and LOCAL.intersection(active)):
        _plan_local(plan, advice)
    plan.process = {name: values[name] for name in active if name in PROCESS}
    plan.sync_batch_norm = BATCH_NORM in active and bool(values[BATCH_NORM])
    plan.compiled = any(name in active and values[name] for name in FUSION)
    if MEMORY in active:
        plan.memory_fraction = float(values[MEMORY])
    said = plan.provenance.keys() | plan.left.keys() | plan.unmapped.keys()
    untouched = (name for name in EXPRESSED if name not in said)
    plan.left |= dict.fromkeys(untouched, "Unchanged: as the script has it.")
    return plan


def _describe_options(name: str, value: Value) -> str:
    """What sets it for DDP's communicator alone; empty for a variable that NCCL has for whole processes only."""
    if name not in NCCL_FIELDS:
        return ""
    # NCCL refuses the fewest without the most.
    limit = " options.config.max_ctas = 64;" if name == "NCCL_MIN_CTAS" else ""
    return (
        " Or give DDP a communicator of its own where the environment does not set it: options = "
        f"dist.ProcessGroupNCCL.Options(); options.config.{NCCL_FIELDS[name]} = {value};{limit} "
        "DistributedDataParallel(model, process_group=dist.new_group(pg_options=options))."
    )


def _plan_buckets(plan: DdpPlan, advice: Advice) -> None:
    if not BUCKETS.intersection(plan.provenance):
        return
    values = typed_values(advice)
    if not values["fuse_all_reduce_ops"]:
        plan.bucket_mb = plan.first_bucket_mb = 2.0**-20
        return
    plan.bucket_mb = float(values["fuse_grad_size_in_MB"])
    plan.first_bucket_mb = min(float(values["last_comm_group_size_MB"]), plan.bucket_mb)


def _plan_reduction(plan: DdpPlan, advice: Advice, job: Job) -> None:
    values = typed_values(advice)
    backend = job.facts.backend if job.facts else "nccl"
    if "nccl_comm_num" in plan.provenance:
        plan.communicators = int(values["nccl_comm_num"])
    if "use_hierarchical_allreduce" in plan.provenance and values["use_hierarchical_allreduce"]:
        inner = int(values["hierarchical_allreduce_inter_nranks"])
        plan.inner_ranks = inner if inner > 1 else (job.facts.local_world_size if job.facts else inner)
    if WIRE.intersection(plan.provenance) and values["fp16_allreduce"]:
        plan.wire_dtype = str(values["fp16_allreduce_dtype"])
        plan.refuses_bf16 = backend != "nccl"
    if "sync_nccl_allreduce" in plan.provenance and values["sync_nccl_allreduce"]:
        if backend == "nccl" and plan.communicators == 1 and not plan.inner_ranks:
            plan.left["sync_nccl_allreduce"] = (
                "One NCCL communicator runs its allreduces one after another by itself."
            )
            del plan.provenance["sync_nccl_allreduce"]
        else:
            plan.in_order = True
    if plan.needs_reduction:
        plan.warnings.append(
            f"Stock PyTorch has no such reduction over {backend}: a communication hook of about 80 lines is part of "
            "this file. It reduces over all ranks of the job and keeps process groups of its own."
        )


def describe_by_hand(name: str, values: Mapping[str, Value]) -> str:
    """Return what to write where in the script itself for a knob; empty where PyTorch has no line for it."""
    if name in BY_HAND:
        return f"Apply by hand: {BY_HAND[name].format(value=values[name])}"
    if CATALOGUE[name].place is Place.DATA_READING:
        argument = f"{name.removeprefix('loader_')}={values[name]!r}"
        return f"Give it to the training loader by hand: DataLoader(..., {argument})."
    if sharding := describe_sharding(name, values):
        return sharding
    if name in MERGE:
        steps = values["gradient_merge_k_steps"]
        share = f", each loss divided by {steps}" if values["gradient_merge_avg"] else ""
        return (
            f"Apply by hand: of every {steps} steps run all but the last under ddp.no_sync(){share}, and clip "
            "gradients, call optimizer.step() and zero_grad() after the last one only."
        )
    if name not in ADAPTIVE:
        return ""
    return (
        "Apply by hand: average the parameters every k steps instead of the gradients, and after each averaging set k "
        "to ceil(sqrt(first rate / rate * loss / first loss) * "
        f"{values['adaptive_localsgd_init_k_steps']}), at most 16."
    )


def _unmap(plan: DdpPlan, names: frozenset[str], sentence: str) -> None:
    for name in names & plan.provenance.keys():
        del plan.provenance[name]
        plan.unmapped[name] = sentence


def _plan_precision(plan: DdpPlan, values: Mapping[str, Value]) -> None:
    if not PRECISION & plan.provenance.keys() or not values["amp"]:
        return
    if values["amp_dtype"] == "bf16":
        plan.autocast_dtype = "bf16"
        return
    _unmap(
        plan,
        PRECISION,
        "Apply by hand: run the forward under torch.autocast(device_type, torch.float16), and scale the loss with "
        f"torch.amp.GradScaler({_scaler_arguments(values)}), which takes lines in the middle of the script.",
    )


def _scaler_arguments(values: Mapping[str, Value]) -> str:
    first = f"init_scale={values['amp_init_loss_scaling']:g}"
    return (
        first
        if values["amp_dynamic_loss_scaling"]
        else f"{first}, growth_interval=10**9, backoff_factor=1 - 1e-9"
    )


def _plan_compression(plan: DdpPlan, values: Mapping[str, Value], job: Job) -> None:
    if not COMPRESSION & plan.provenance.keys() or not values["dgc"]:
        return
    if job.facts and job.facts.backend != "nccl":
        _unmap(
            plan,
            COMPRESSION,
            f"Apply by hand: torch's PowerSGD hook of rank {values['dgc_rank']} waits inside callbacks, which can "
            f"block {job.facts.backend} for good unless one bucket is reduced at a time, as the trials did.",
        )
        return
    plan.compression_rank = int(values["dgc_rank"])
    plan.warnings.append(
        "PowerSGD changes the optimisation: it feeds the error of its compression back in the next step. Save the "
        "hook's state with your checkpoints."
    )


def _plan_local(plan: DdpPlan, advice: Advice) -> None:
    values = typed_values(advice)
    if not values["localsgd"]:
        return
    plan.local_steps = int(values["localsgd_k_steps"])
    plan.local_begin = int(values["localsgd_begin_step"])
    plan.provenance |= {
        name: advice.provenance.get(name, Provenance.CARRIED) for name in LOCAL if name not in plan.provenance
    }
    plan.warnings.append(
        "Local SGD changes the optimisation: ranks hold different parameters between averagings. Save and evaluate "
        "right after an averaging, and do not let a GradScaler skip steps on single ranks."
    )
