"""What a knob is in the settings of Trainer, Lightning, Accelerate and DeepSpeed, in the situation of a job.

Versions: transformers 5.24 (the arguments have had these names since 4.38, unless said otherwise), Lightning 2.6,
accelerate 1.15, DeepSpeed 0.19.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from advisor.protocol.answers.found_recomputed import name_trainers_argument, write_kept
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.sharding import DEEPSPEED
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import Recomputed

DTYPES: Mapping[str, str] = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


@dataclass(frozen=True)
class Situation:
    """What a word depends on."""

    values: Mapping[str, Value]
    """The strategy: a value for every knob."""
    backend: str
    on_gpu: bool
    microbatches: int
    """Forward passes per optimizer step, as the script was measured."""
    optimizers: tuple[str, ...]
    bytes_per_number: int
    """Of a gradient."""
    sharding: str
    """What takes DDP's place, as the script was measured; empty for DDP."""
    batch: int
    """Samples of one forward pass, as the script was measured; 0 where that is unknown."""
    torch: tuple[int, ...]
    """Version of the training's torch; empty where the job does not hold it, which is taken for the newest."""
    software: Mapping[str, str]
    """Versions of what the script trains with, by name."""
    recomputed: Recomputed
    """Activations that the script computes again."""

    @classmethod
    def of(cls, values: Mapping[str, Value], job: Job) -> "Situation":
        """Return the situation of a job under a strategy."""
        facts = job.facts
        found = re.match(r"(\d+)\.(\d+)", facts.torch_version if facts else "")
        return cls(
            values=values,
            backend=facts.backend if facts else "nccl",
            on_gpu=facts is None or facts.device is DeviceKind.CUDA,
            microbatches=max(1, round(facts.microbatches_per_step)) if facts else 1,
            optimizers=facts.optimizers if facts else (),
            bytes_per_number=2 if facts and facts.gradient_dtype in {"float16", "bfloat16"} else 4,
            sharding=facts.sharding if facts else "",
            batch=round(facts.batch_size_per_rank / max(1.0, facts.microbatches_per_step)) if facts else 0,
            torch=tuple(map(int, found.groups())) if found else (),
            software=facts.software if facts else {},
            recomputed=facts.recomputed if facts else Recomputed(),
        )

    @property
    def is_compiled(self) -> bool:
        """Whether the strategy compiles the model."""
        return bool(self.values["fuse_elewise_add_act_ops"] or self.values["fuse_bn_act_ops"])

    def reaches(self, *version: int) -> bool:
        """Whether the training's torch is of that version or later."""
        return not self.torch or self.torch >= version


class Code(str):
    """A value that is written as it stands: an expression of Python."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Said:
    """What a knob is in a framework's settings."""

    settings: Mapping[str, Value | None]
    """Setting -> value; as the framework spells it, dots leading into nested settings."""
    note: str = ""
    """How that differs from what was measured; empty where it does not."""


@dataclass(frozen=True)
class Refusal:
    """Why the framework cannot be told."""

    sentence: str


Line = Callable[[Situation], Said | Refusal]
"""What a knob, in its situation, is called in a framework."""


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


def bucket_in_one_size(name: str, whole: bool = False) -> Line:
    """The line of a setting that gives all of DDP's buckets one size in MB."""

    def say(situation: Situation) -> Said | Refusal:
        if not situation.values["fuse_all_reduce_ops"]:
            return Refusal("It has no way to give every parameter a bucket of its own.")
        measured, first = find_buckets(situation.values)
        size: Value = max(1, round(measured)) if whole else measured
        differs = []
        if size != measured:
            differs.append(f"measured at {measured:g} MB, and it takes whole MB")
        if first != measured:
            differs.append(f"the first bucket gets {size:g} MB too, and had {first:g} MB in the trials")
        label = name.rpartition(".")[2]
        return Said({name: size}, f"{label}: {'; '.join(differs)}." if differs else "")

    return say


def first_bucket(situation: Situation) -> Said | Refusal:
    """The line of the first bucket where all buckets have one size."""
    values = situation.values
    if float(values["last_comm_group_size_MB"]) >= float(values["fuse_grad_size_in_MB"]):
        return Said({})
    return Refusal("All buckets get one size here, the first one too.")


def engines_bucket(situation: Situation) -> Said | Refusal:
    if not situation.values["fuse_all_reduce_ops"]:
        return Refusal("It has no way to give every parameter a bucket of its own.")
    numbers = round(float(situation.values["fuse_grad_size_in_MB"]) * 2**20 / situation.bytes_per_number)
    note = "" if situation.sharding == DEEPSPEED else "reduce_bucket_size is read in ZeRO stages 1 to 3 only."
    return Said({"zero_optimization.reduce_bucket_size": max(1, numbers)}, note)


def lightnings_buckets(situation: Situation) -> Said | Refusal:
    size, first = find_buckets(situation.values)
    listed = spell_list(situation.values)
    if size == first and not listed:
        return Said({"ddp.bucket_cap_mb": size})
    note = "bucket_cap_mb_list needs torch 2.12 or later."
    return Said({"ddp.bucket_cap_mb_list": Code(listed or f"[{first}, {size}]")}, note)


def lightnings_wire(situation: Situation) -> Said | Refusal:
    if not situation.on_gpu:
        return Refusal("Lightning installs communication hooks on GPUs only, and the job ran on processors.")
    on, dtype = situation.values["fp16_allreduce"], situation.values["fp16_allreduce_dtype"]
    return Said({"ddp.ddp_comm_hook": Code(f"default_hooks.{dtype}_compress_hook") if on else None})


def accelerates_wire(situation: Situation) -> Said | Refusal:
    if not situation.values["fp16_allreduce"]:
        return Said({"ddp.comm_hook": Code("DDPCommunicationHookType.NO")})
    dtype = str(situation.values["fp16_allreduce_dtype"])
    if dtype == "bf16" and situation.backend != "nccl":
        return Refusal(
            f"DDP takes its bf16 hook with NCCL only, and the job communicates over {situation.backend}."
        )
    # Its plain name would be taken for no hook at all, without a word.
    return Said({"ddp.comm_hook": Code(f"DDPCommunicationHookType.{dtype.upper()}")})


def accelerates_compression(situation: Situation) -> Said | Refusal:
    if not situation.values["dgc"]:
        return Said({"ddp.comm_hook": Code("DDPCommunicationHookType.NO")})
    if situation.backend != "nccl":
        return Refusal(f"torch's PowerSGD hook can block {situation.backend} for good.")
    state = f'{{"matrix_approximation_rank": {situation.values["dgc_rank"]}, "start_powerSGD_iter": 2}}'
    hook = Code("DDPCommunicationHookType.POWER_SGD")
    return Said({"ddp.comm_hook": hook, "ddp.comm_state_option": Code(state)})


def engines_wire(situation: Situation) -> Said | Refusal:
    on, dtype = situation.values["fp16_allreduce"], situation.values["fp16_allreduce_dtype"]
    return Said({"communication_data_type": dtype if on else "fp32"})


def accumulation(name: str, note: str = "") -> Line:
    """The line of a setting that counts forward passes per optimizer step and averages over them."""

    def say(situation: Situation) -> Said | Refusal:
        if not situation.values["gradient_merge_avg"]:
            return Refusal(f"{name} averages the merged gradients, and the trials added them up.")
        steps = situation.microbatches * int(situation.values["gradient_merge_k_steps"])
        return Said({name: steps}, f"{name}: {note}" if note else "")

    return say


def batch_size(name: str) -> Line:
    """The line of a setting that takes the samples of a rank's forward pass."""

    def say(situation: Situation) -> Said | Refusal:
        if situation.batch < 1:
            return Refusal(f"{name} takes a number of samples, and the script's own is not known.")
        return Said({name: situation.batch * int(situation.values["batch_size_multiple"])})

    return say


def precision(name: str, by_type: Mapping[str, Value], off: Value) -> Line:
    """The line of a setting that chooses the 16-bit type of mixed precision."""
    return lambda situation: Said(
        {name: by_type[str(situation.values["amp_dtype"])] if situation.values["amp"] else off}
    )


def trainers_precision(situation: Situation) -> Said | Refusal:
    if not situation.values["amp"]:
        return Refusal("Leave out bf16 and fp16, one of which your script sets.")
    return Said({str(situation.values["amp_dtype"]): True})


def engines_precision(situation: Situation) -> Said | Refusal:
    values = situation.values
    dtype = DTYPES[str(values["amp_dtype"])].removeprefix("torch.")
    return Said({"torch_autocast.enabled": values["amp"], "torch_autocast.dtype": dtype})


def trainers_recomputation(situation: Situation) -> Said | Refusal:
    name = name_trainers_argument(situation.software, situation.recomputed)
    if not name:
        return Refusal(
            f"The script itself has activations computed again: {' '.join(write_kept(situation.recomputed))}."
        )
    return Said({name: situation.values["activation_checkpointing"]})


def trainers_optimizer(situation: Situation) -> Said | Refusal:
    if set(situation.optimizers) - {"AdamW"}:
        return Refusal(f"`optim` would replace {', '.join(situation.optimizers)} by AdamW.")
    fused = situation.values["fuse_all_optimizer_ops"]
    return Said({"optim": "adamw_torch_fused" if fused else "adamw_torch"})
