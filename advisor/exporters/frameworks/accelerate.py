"""`accelerator_arguments.py`: the strategy as arguments of Hugging Face's `Accelerator`."""

from advisor.exporters.exported import Exported
from advisor.exporters.frameworks.python_file import write_python_file
from advisor.exporters.frameworks.settings import (
    Refusal,
    Said,
    Situation,
    Table,
    accumulation,
    bucket_in_one_size,
    choose_settings,
    first_bucket,
    list_ddp_words,
    precision,
)
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job

_BUCKET = bucket_in_one_size("ddp.bucket_cap_mb")
_ACCUMULATION = accumulation("gradient_accumulation_steps")
_PRECISION = precision("mixed_precision", {"bf16": "bf16", "fp16": "fp16"}, off="no")


def _wire(situation: Situation) -> Said | Refusal:
    if not situation.values["fp16_allreduce"]:
        return Said({"ddp.comm_hook": "no"})
    dtype = str(situation.values["fp16_allreduce_dtype"])
    if dtype == "bf16" and situation.backend != "nccl":
        return Refusal(
            f"DDP takes its bf16 hook with NCCL only, and the job communicates over {situation.backend}."
        )
    return Said({"ddp.comm_hook": dtype})


def _compression(situation: Situation) -> Said | Refusal:
    if not situation.values["dgc"]:
        return Said({"ddp.comm_hook": "no"})
    if situation.backend != "nccl":
        return Refusal(f"torch's PowerSGD hook can block {situation.backend} for good.")
    rank = situation.values["dgc_rank"]
    return Said({"ddp.comm_hook": "power_sgd", "ddp.matrix_approximation_rank": rank})


def _compiled(situation: Situation) -> Said | Refusal:
    values = situation.values
    on = values["fuse_elewise_add_act_ops"] or values["fuse_bn_act_ops"]
    return Said({"dynamo_backend": "inductor" if on else "no"})


TABLE: Table = {
    "fuse_all_reduce_ops": _BUCKET,
    "fuse_grad_size_in_MB": _BUCKET,
    "last_comm_group_size_MB": first_bucket,
    "fp16_allreduce": _wire,
    "fp16_allreduce_dtype": _wire,
    "dgc": _compression,
    "dgc_rank": _compression,
    "gradient_merge": _ACCUMULATION,
    "gradient_merge_k_steps": _ACCUMULATION,
    "gradient_merge_avg": _ACCUMULATION,
    "amp": _PRECISION,
    "amp_dtype": _PRECISION,
    "fuse_elewise_add_act_ops": _compiled,
    "fuse_bn_act_ops": _compiled,
}
"""accelerate 1.15; `ddp.` names arguments of its DistributedDataParallelKwargs."""


def export_accelerate(advice: Advice, job: Job) -> Exported:
    """Return the file: `Accelerator(..., **strategy_arguments())`."""
    chosen = choose_settings(advice, job, "Accelerate", TABLE)
    if "gradient_accumulation_steps" in chosen.entries:
        chosen.warnings.append(
            "gradient_accumulation_steps acts where the loop runs under `with accelerator.accumulate(model):`."
        )
    ddp = {
        name.removeprefix("ddp."): value for name, value in chosen.entries.items() if name.startswith("ddp.")
    }
    rank = ddp.pop("matrix_approximation_rank", None)
    hook = ddp.pop("comm_hook", None)
    words = [f"{name}={value!r}" for name, value in ddp.items()]
    if hook is not None:
        # Its plain name would be taken for no hook at all, without a word.
        words.append(f"comm_hook=DDPCommunicationHookType.{str(hook).upper()}")
    if rank is not None:
        words.append(f'comm_state_option={{"matrix_approximation_rank": {rank}, "start_powerSGD_iter": 2}}')
    if words:
        words += list_ddp_words(job)
    classes = ["DDPCommunicationHookType"] * (hook is not None) + ["DistributedDataParallelKwargs"] * bool(
        words
    )
    imports = {f"from accelerate import {', '.join(classes)}"} if classes else set()
    arguments = {name: repr(value) for name, value in chosen.entries.items() if not name.startswith("ddp.")}
    if words:
        arguments["kwargs_handlers"] = f"[DistributedDataParallelKwargs({', '.join(words)})]"
    return write_python_file(
        advice, job, chosen,
        format="accelerate", filename="accelerator_arguments.py",
        title="Strategy for Hugging Face's Accelerate: Accelerator(..., **strategy_arguments()).",
        imports=imports,
        arguments=arguments,
    )  # fmt: skip
