"""The strategy as arguments of Trainer, Accelerate and Lightning: a table of plain settings for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from advisor.exporters.by_hand import BUCKETS, find_buckets, spell_list
from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.frameworks.settings import (
    Code,
    Refusal,
    Said,
    Situation,
    Table,
    accumulation,
    batch_size,
    bucket_in_one_size,
    choose_settings,
    first_bucket,
    list_ddp_words,
    plainly,
    precision,
)
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value

_ACCUMULATE = "it acts where the loop runs under `with accelerator.accumulate(model):`."
_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"

_CLASSES = ("DDPCommunicationHookType", "DistributedDataParallelKwargs", "DDPStrategy")


@dataclass(frozen=True)
class Library:
    """A library whose user gives a call arguments."""

    format: str
    call: str
    """What the arguments are given to."""
    title: str
    table: Table
    ddp_argument: str = ""
    """Through which of them DDP's own arguments go; empty where none does."""
    ddp_value: str = "{}"
    """What it is given, around DDP's arguments."""
    ddp_module: str = ""
    """Where that value's names are from."""


def _optimizer(situation: Situation) -> Said | Refusal:
    if set(situation.optimizers) - {"AdamW"}:
        return Refusal(f"`optim` would replace {', '.join(situation.optimizers)} by AdamW.")
    fused = situation.values["fuse_all_optimizer_ops"]
    return Said({"optim": "adamw_torch_fused" if fused else "adamw_torch"})


def _is_compiled(situation: Situation) -> bool:
    return bool(situation.values["fuse_elewise_add_act_ops"] or situation.values["fuse_bn_act_ops"])


def _trainers_precision(situation: Situation) -> Said | Refusal:
    if not situation.values["amp"]:
        return Refusal("Leave out bf16 and fp16, one of which your script sets.")
    return precision(str(situation.values["amp_dtype"]), {"bf16": True, "fp16": True}, off=False)(situation)


def _accelerates_wire(situation: Situation) -> Said | Refusal:
    if not situation.values["fp16_allreduce"]:
        return Said({"ddp.comm_hook": Code("DDPCommunicationHookType.NO")})
    dtype = str(situation.values["fp16_allreduce_dtype"])
    if dtype == "bf16" and situation.backend != "nccl":
        return Refusal(
            f"DDP takes its bf16 hook with NCCL only, and the job communicates over {situation.backend}."
        )
    # Its plain name would be taken for no hook at all, without a word.
    return Said({"ddp.comm_hook": Code(f"DDPCommunicationHookType.{dtype.upper()}")})


def _accelerates_compression(situation: Situation) -> Said | Refusal:
    if not situation.values["dgc"]:
        return Said({"ddp.comm_hook": Code("DDPCommunicationHookType.NO")})
    if situation.backend != "nccl":
        return Refusal(f"torch's PowerSGD hook can block {situation.backend} for good.")
    state = f'{{"matrix_approximation_rank": {situation.values["dgc_rank"]}, "start_powerSGD_iter": 2}}'
    hook = Code("DDPCommunicationHookType.POWER_SGD")
    return Said({"ddp.comm_hook": hook, "ddp.comm_state_option": Code(state)})


def _lightnings_wire(situation: Situation) -> Said | Refusal:
    if not situation.on_gpu:
        return Refusal("Lightning installs communication hooks on GPUs only, and the job ran on processors.")
    on, dtype = situation.values["fp16_allreduce"], situation.values["fp16_allreduce_dtype"]
    return Said({"ddp.ddp_comm_hook": Code(f"default_hooks.{dtype}_compress_hook") if on else None})


def _lightnings_buckets(situation: Situation) -> Said | Refusal:
    size, first = find_buckets(situation.values)
    listed = spell_list(situation.values)
    if size == first and not listed:
        return Said({"ddp.bucket_cap_mb": size})
    note = "bucket_cap_mb_list needs torch 2.12 or later."
    return Said({"ddp.bucket_cap_mb_list": Code(listed or f"[{first}, {size}]")}, note)


def _one_size(name: str, whole: bool = False) -> Table:
    line = bucket_in_one_size(name, whole)
    return {
        "fuse_all_reduce_ops": line,
        "fuse_grad_size_in_MB": line,
        "last_comm_group_size_MB": first_bucket,
    }


def _accumulation(name: str, note: str = "") -> Table:
    knobs = ("gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg")
    return dict.fromkeys(knobs, accumulation(name, note))


_ACCELERATES_PRECISION = precision("mixed_precision", {"bf16": "bf16", "fp16": "fp16"}, off="no")
_LIGHTNINGS_PRECISION = precision("precision", {"bf16": "bf16-mixed", "fp16": "16-mixed"}, off="32-true")
LIBRARIES: Mapping[str, Library] = MappingProxyType(
    {
        "transformers": Library(
            format="trainer",
            call="TrainingArguments",
            title="Strategy for Hugging Face's Trainer: TrainingArguments(..., **strategy_arguments()).",
            # transformers 5.23; the arguments have had these names since 4.38.
            table={
                **_one_size("ddp_bucket_cap_mb", whole=True),
                "find_unused_parameters": plainly("ddp_find_unused_parameters", "find_unused_parameters"),
                "broadcast_buffers": plainly("ddp_broadcast_buffers", "broadcast_buffers"),
                **_accumulation("gradient_accumulation_steps"),
                "batch_size_multiple": batch_size("per_device_train_batch_size"),
                "amp": _trainers_precision,
                "amp_dtype": _trainers_precision,
                "fuse_all_optimizer_ops": _optimizer,
                "fuse_elewise_add_act_ops": lambda situation: Said(
                    {"torch_compile": _is_compiled(situation)}
                ),
                "fuse_bn_act_ops": lambda situation: Said({"torch_compile": _is_compiled(situation)}),
                **{
                    f"loader_{name}": plainly(f"dataloader_{name}", f"loader_{name}")
                    for name in ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
                },
            },
        ),
        "lightning": Library(
            format="lightning",
            call="Trainer",
            title="Strategy for Lightning: Trainer(..., **strategy_arguments()), in the place of your own strategy=.",
            # Lightning 2.6.
            table={
                **dict.fromkeys(BUCKETS, _lightnings_buckets),
                "find_unused_parameters": plainly("ddp.find_unused_parameters", "find_unused_parameters"),
                "broadcast_buffers": plainly("ddp.broadcast_buffers", "broadcast_buffers"),
                "fp16_allreduce": _lightnings_wire,
                "fp16_allreduce_dtype": _lightnings_wire,
                **_accumulation("accumulate_grad_batches"),
                "amp": _LIGHTNINGS_PRECISION,
                "amp_dtype": _LIGHTNINGS_PRECISION,
                "sync_batch_norm": plainly("sync_batchnorm", "sync_batch_norm"),
                "cudnn_exhaustive_search": plainly("benchmark", "cudnn_exhaustive_search"),
            },
            ddp_argument="strategy",
            ddp_value="DDPStrategy({})",
            ddp_module="lightning.pytorch.strategies",
        ),
        "accelerate": Library(
            format="accelerate",
            call="Accelerator",
            title="Strategy for Hugging Face's Accelerate: Accelerator(..., **strategy_arguments()).",
            # accelerate 1.15.
            table={
                **_one_size("ddp.bucket_cap_mb"),
                "find_unused_parameters": plainly("ddp.find_unused_parameters", "find_unused_parameters"),
                "broadcast_buffers": plainly("ddp.broadcast_buffers", "broadcast_buffers"),
                "fp16_allreduce": _accelerates_wire,
                "fp16_allreduce_dtype": _accelerates_wire,
                "dgc": _accelerates_compression,
                "dgc_rank": _accelerates_compression,
                **_accumulation("gradient_accumulation_steps", _ACCUMULATE),
                "amp": _ACCELERATES_PRECISION,
                "amp_dtype": _ACCELERATES_PRECISION,
                "fuse_elewise_add_act_ops": lambda situation: Said(
                    {"dynamo_backend": "inductor" if _is_compiled(situation) else "no"}
                ),
                "fuse_bn_act_ops": lambda situation: Said(
                    {"dynamo_backend": "inductor" if _is_compiled(situation) else "no"}
                ),
            },
            ddp_argument="kwargs_handlers",
            ddp_value="[DistributedDataParallelKwargs({})]",
            ddp_module="accelerate",
        ),
    }
)
"""By the name that the facts of a job know them by, in the order in which one that uses others comes first."""


def write_arguments(entries: Mapping[str, Value | None], library: Library, job: Job) -> dict[str, str]:
    """Return what the library's call is given, as Python: DDP's arguments in the one that they go through."""
    said = [word for word in list_ddp_words(job) if f"ddp.{word.partition('=')[0]}" not in entries]
    told = {name: repr(value) for name, value in entries.items() if not name.startswith("ddp.")}
    ddp = [
        f"{name.removeprefix('ddp.')}={value!r}" for name, value in entries.items() if name.startswith("ddp.")
    ]
    if ddp:
        # It stands in the place of the script's own, which says these.
        told[library.ddp_argument] = library.ddp_value.format(", ".join([*ddp, *said]))
    return told


def export_arguments(advice: Advice, job: Job, library: Library, filename: str) -> Exported:
    """Return the file: `strategy_arguments()`, a dictionary to pass on with `**`."""
    chosen = choose_settings(advice, job, library.format.capitalize(), library.table)
    arguments = write_arguments(chosen.entries, library, job)
    head = head_lines(advice, job, library.title, chosen.provenance, chosen.warnings, chosen.unmapped)
    if chosen.entries and not library.ddp_argument:
        flags = " ".join(f"--{name} {value}" for name, value in chosen.entries.items())
        head.append(f"For a script whose arguments come from the command line: {flags}")
    body = "".join(f'        "{name}": {text},\n' for name, text in arguments.items())
    return Exported(
        format=library.format,
        filename=filename,
        media_type="text/x-python; charset=utf-8",
        content=comment(head)
        + _write_imports(arguments, library, job)
        + f"\n\ndef strategy_arguments():\n    return {{\n{body}    }}\n",
        provenance=chosen.provenance,
        unmapped=chosen.unmapped,
        warnings=tuple(chosen.warnings),
    )


def _write_imports(arguments: Mapping[str, str], library: Library, job: Job) -> str:
    value, module = arguments.get(library.ddp_argument, ""), library.ddp_module
    if job.facts is not None and "pytorch_lightning" in job.facts.software:
        module = module.replace("lightning.pytorch", "pytorch_lightning")
    classes = [name for name in _CLASSES if name in value]
    lines = [f"from {module} import {', '.join(classes)}"] if classes else []
    if "default_hooks" in value:
        lines.append(_HOOKS)
    return "\n" + "".join(f"{line}\n" for line in lines) if lines else ""
