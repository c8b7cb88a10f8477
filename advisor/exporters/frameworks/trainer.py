"""`training_arguments.py`: the strategy as arguments of Hugging Face's `TrainingArguments`."""

from advisor.exporters.exported import Exported
from advisor.exporters.frameworks.python_file import write_python_file
from advisor.exporters.frameworks.settings import (
    Refusal,
    Said,
    Situation,
    Table,
    accumulation,
    batch_size,
    bucket_in_one_size,
    choose_settings,
    first_bucket,
    plainly,
    precision,
)
from advisor.exporters.selection import idle_because, typed_values
from advisor.exporters.torch.ddp_plan import PROCESS
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job

_BUCKET = bucket_in_one_size("ddp_bucket_cap_mb", whole=True)
_ACCUMULATION = accumulation("gradient_accumulation_steps")


def _optimizer(situation: Situation) -> Said | Refusal:
    if set(situation.optimizers) - {"AdamW"}:
        return Refusal(f"`optim` would replace {', '.join(situation.optimizers)} by AdamW.")
    fused = situation.values["fuse_all_optimizer_ops"]
    return Said({"optim": "adamw_torch_fused" if fused else "adamw_torch"})


def _compiled(situation: Situation) -> Said | Refusal:
    values = situation.values
    return Said({"torch_compile": bool(values["fuse_elewise_add_act_ops"] or values["fuse_bn_act_ops"])})


def _precision(situation: Situation) -> Said | Refusal:
    if not situation.values["amp"]:
        return Refusal("Leave out bf16 and fp16, one of which your script sets.")
    return precision(str(situation.values["amp_dtype"]), {"bf16": True, "fp16": True}, off=False)(situation)


TABLE: Table = {
    "fuse_all_reduce_ops": _BUCKET,
    "fuse_grad_size_in_MB": _BUCKET,
    "last_comm_group_size_MB": first_bucket,
    "gradient_merge": _ACCUMULATION,
    "gradient_merge_k_steps": _ACCUMULATION,
    "gradient_merge_avg": _ACCUMULATION,
    "batch_size_multiple": batch_size("per_device_train_batch_size"),
    "amp": _precision,
    "amp_dtype": _precision,
    "fuse_all_optimizer_ops": _optimizer,
    "fuse_elewise_add_act_ops": _compiled,
    "fuse_bn_act_ops": _compiled,
    "loader_num_workers": plainly("dataloader_num_workers", "loader_num_workers"),
    "loader_prefetch_factor": plainly("dataloader_prefetch_factor", "loader_prefetch_factor"),
    "loader_pin_memory": plainly("dataloader_pin_memory", "loader_pin_memory"),
    "loader_persistent_workers": plainly("dataloader_persistent_workers", "loader_persistent_workers"),
}
"""transformers 5.23; the arguments have had these names since 4.38."""


def export_trainer(advice: Advice, job: Job) -> Exported:
    """Return the file: `TrainingArguments(..., **strategy_arguments())`."""
    chosen = choose_settings(advice, job, "Trainer", TABLE)
    flags = " ".join(f"--{name} {value}" for name, value in chosen.entries.items())
    values = typed_values(advice)
    # strategy_arguments() does it itself; a flag for it there is none.
    without = [name for name in advice.changes if name in PROCESS and idle_because(name, values) is None]
    extra = f"For a script whose arguments come from the command line: {flags}" if flags else ""
    if extra and without:
        extra += f" (without {', '.join(without)}, which only the call of strategy_arguments() sets)"
    return write_python_file(
        advice, job, chosen,
        format="trainer", filename="training_arguments.py",
        title="Strategy for Hugging Face's Trainer: TrainingArguments(..., **strategy_arguments()).",
        extra=extra,
    )  # fmt: skip
