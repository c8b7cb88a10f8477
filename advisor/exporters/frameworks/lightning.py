"""`trainer_arguments.py`: the strategy as arguments of Lightning's `Trainer`."""

from advisor.exporters.exported import Exported
from advisor.exporters.frameworks.python_file import write_python_file
from advisor.exporters.frameworks.settings import (
    Refusal,
    Said,
    Situation,
    Table,
    accumulation,
    choose_settings,
    list_ddp_words,
    plainly,
    precision,
)
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job

_ACCUMULATION = accumulation("accumulate_grad_batches")
_PRECISION = precision("precision", {"bf16": "bf16-mixed", "fp16": "16-mixed"}, off="32-true")
_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
_POWER_SGD = "from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd"
_POST_LOCAL = "from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local"


def _buckets(situation: Situation) -> Said | Refusal:
    values = situation.values
    if not values["fuse_all_reduce_ops"]:
        return Said({"ddp.bucket_cap_mb": 2.0**-20})
    size = float(values["fuse_grad_size_in_MB"])
    first = min(float(values["last_comm_group_size_MB"]), size)
    return (
        Said({"ddp.bucket_cap_mb": size})
        if first == size
        else Said({"ddp.bucket_cap_mb_list": f"{first} {size}"})
    )


def _on_gpu(situation: Situation) -> Refusal | None:
    if situation.on_gpu:
        return None
    return Refusal("Lightning installs communication hooks on GPUs only, and the job ran on processors.")


def _wire(situation: Situation) -> Said | Refusal:
    if refused := _on_gpu(situation):
        return refused
    on, dtype = situation.values["fp16_allreduce"], situation.values["fp16_allreduce_dtype"]
    return Said({"ddp.hook": f"{dtype}_compress_hook" if on else None})


def _compression(situation: Situation) -> Said | Refusal:
    return _on_gpu(situation) or Said({"ddp.power_sgd": situation.values["dgc_rank"]})


def _local_sgd(situation: Situation) -> Said | Refusal:
    if refused := _on_gpu(situation):
        return refused
    values = situation.values
    return Said({"ddp.local_sgd": f"{values['localsgd_k_steps']} {values['localsgd_begin_step']}"})


TABLE: Table = {
    "fuse_all_reduce_ops": _buckets,
    "fuse_grad_size_in_MB": _buckets,
    "last_comm_group_size_MB": _buckets,
    "fp16_allreduce": _wire,
    "fp16_allreduce_dtype": _wire,
    "dgc": _compression,
    "dgc_rank": _compression,
    "localsgd": _local_sgd,
    "localsgd_k_steps": _local_sgd,
    "localsgd_begin_step": _local_sgd,
    "gradient_merge": _ACCUMULATION,
    "gradient_merge_k_steps": _ACCUMULATION,
    "gradient_merge_avg": _ACCUMULATION,
    "amp": _PRECISION,
    "amp_dtype": _PRECISION,
    "sync_batch_norm": plainly("sync_batchnorm", "sync_batch_norm"),
    "cudnn_exhaustive_search": plainly("benchmark", "cudnn_exhaustive_search"),
}
"""Lightning 2.6; `ddp.` names what its DDPStrategy is given."""


def export_lightning(advice: Advice, job: Job) -> Exported:
    """Return the file: `Trainer(..., **strategy_arguments())`."""
    chosen = choose_settings(advice, job, "Lightning", TABLE)
    arguments, words, imports = {}, [], set()
    for name, value in chosen.entries.items():
        match name.removeprefix("ddp."):
            case "bucket_cap_mb":
                words.append(f"bucket_cap_mb={value!r}")
            case "bucket_cap_mb_list":
                words.append(f"bucket_cap_mb_list=[{', '.join(str(value).split())}]")
                chosen.warnings.append("bucket_cap_mb_list needs torch 2.12 or later.")
            case "hook" if value:
                imports.add(_HOOKS)
                words.append(f"ddp_comm_hook=default_hooks.{value}")
            case "power_sgd":
                imports.add(_POWER_SGD)
                words.append(
                    "ddp_comm_hook=power_sgd.powerSGD_hook, ddp_comm_state=power_sgd.PowerSGDState(process_group=None, "
                    f"matrix_approximation_rank={value}, start_powerSGD_iter=2)"
                )
            case "local_sgd":
                interval, begin = str(value).split()
                imports.add(_POST_LOCAL)
                words.append(
                    f"ddp_comm_hook=post_local.post_localSGD_hook, model_averaging_period={interval}, ddp_comm_state="
                    "post_local.PostLocalSGDState(process_group=None, subgroup=None, "
                    f"start_localSGD_iter={begin}, post_local_gradient_allreduce=False)"
                )
            case plain if not name.startswith("ddp."):
                arguments[plain] = repr(value)
    if words:
        words += list_ddp_words(job)
        older = job.facts is not None and "pytorch_lightning" in job.facts.software
        package = "pytorch_lightning" if older else "lightning.pytorch"
        imports.add(f"from {package}.strategies import DDPStrategy")
        arguments["strategy"] = f"DDPStrategy({', '.join(words)})"
    return write_python_file(
        advice, job, chosen,
        format="lightning", filename="trainer_arguments.py",
        title="Strategy for Lightning: Trainer(..., **strategy_arguments()), in the place of your own strategy=.",
        imports=imports, arguments=arguments,
    )  # fmt: skip
