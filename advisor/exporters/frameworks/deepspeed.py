"""`ds_config.json`: the strategy as a fragment of DeepSpeed's configuration."""

import json
from typing import Any

from advisor.exporters.comments import head_lines, one_line
from advisor.exporters.exported import Exported
from advisor.exporters.frameworks.settings import (
    Refusal,
    Said,
    Situation,
    Table,
    accumulation,
    batch_size,
    choose_settings,
    first_bucket,
    plainly,
)
from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.carried import HEAD
from advisor.protocol.asked.jobs import Job
from advisor.protocol.knobs.sharding import DEEPSPEED

_ACCUMULATION = accumulation("gradient_accumulation_steps")


def _bucket(situation: Situation) -> Said | Refusal:
    if not situation.values["fuse_all_reduce_ops"]:
        return Refusal("It has no way to give every parameter a bucket of its own.")
    numbers = max(
        1, round(float(situation.values["fuse_grad_size_in_MB"]) * 2**20 / situation.bytes_per_number)
    )
    stages = "reduce_bucket_size is read in ZeRO stages 1 to 3 only."
    return Said(
        {"zero_optimization.reduce_bucket_size": numbers},
        "" if situation.sharding == DEEPSPEED else stages,
    )


def _wire(situation: Situation) -> Said | Refusal:
    if not situation.values["fp16_allreduce"]:
        return Said({"communication_data_type": "fp32"})
    return Said({"communication_data_type": situation.values["fp16_allreduce_dtype"]})


def _autocast(situation: Situation) -> Said | Refusal:
    values = situation.values
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[str(values["amp_dtype"])]
    return Said({"torch_autocast.enabled": values["amp"], "torch_autocast.dtype": dtype})


TABLE: Table = {
    "fuse_all_reduce_ops": _bucket,
    "fuse_grad_size_in_MB": _bucket,
    "last_comm_group_size_MB": first_bucket,
    "fp16_allreduce": _wire,
    "fp16_allreduce_dtype": _wire,
    "gradient_merge": _ACCUMULATION,
    "gradient_merge_k_steps": _ACCUMULATION,
    "gradient_merge_avg": _ACCUMULATION,
    "batch_size_multiple": batch_size("train_micro_batch_size_per_gpu"),
    "amp": _autocast,
    "amp_dtype": _autocast,
    "sharding_overlap": plainly("zero_optimization.overlap_comm", "sharding_overlap"),
    "sharding_stage": plainly("zero_optimization.stage", "sharding_stage"),
}
"""DeepSpeed 0.19."""


def export_deepspeed(advice: Advice, job: Job) -> Exported:
    """Return the fragment; what would be comments elsewhere stands under the key `_fleet_advisor`, ignored there.

    JSON without comments, because DeepSpeed takes them and the libraries around it do not.
    """
    chosen = choose_settings(advice, job, "DeepSpeed's configuration", TABLE, DEEPSPEED)
    if chosen.entries and (job.facts is None or job.facts.sharding != DEEPSPEED):
        chosen.warnings.append(
            "Measured with DistributedDataParallel, and translated: DeepSpeed's own engine was not timed."
        )
    title = "Strategy for DeepSpeed: merge these keys into your configuration."
    head = head_lines(advice, job, title, chosen.provenance, chosen.warnings, chosen.unmapped)
    tree: dict[str, Any] = {HEAD: [one_line(line) for line in head]}
    for name, value in chosen.entries.items():
        *outer, last = name.split(".")
        place = tree
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return Exported(
        format="deepspeed",
        filename="ds_config.json",
        media_type="application/json",
        content=json.dumps(tree, indent=2) + "\n",
        provenance=chosen.provenance,
        unmapped=chosen.unmapped,
        warnings=tuple(chosen.warnings),
    )
