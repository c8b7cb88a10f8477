"""Exports for frameworks: the words of each framework, what it has no words for, and what stays out of a bundle."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from advisor.answers.report import export_bundle
from advisor.exporters import export
from advisor.exporters.formats import list_at_work
from advisor.protocol.base import Value
from advisor.protocol.training.workload import DdpFacts

FRAMEWORKS = {
    "trainer": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "deepspeed": "deepspeed",
}


def read(
    advise: Callable, name: str, changes: Mapping[str, Value], **about: Any
) -> tuple[dict[str, Any], Any]:
    """Return the arguments that the file gives its framework, and the file."""
    file = export(*advise(changes, **about), name)
    if name == "deepspeed":
        return {
            key: value for key, value in json.loads(file.content).items() if key != "_fleet_advisor"
        }, file
    space: dict[str, Any] = {}
    exec(compile(file.content, file.filename, "exec"), space)
    return space["strategy_arguments"](), file


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({"fuse_grad_size_in_MB": 8.0, "last_comm_group_size_MB": 8.0}, {"ddp_bucket_cap_mb": 8}),
        ({"gradient_merge": True, "gradient_merge_k_steps": 4}, {"gradient_accumulation_steps": 4}),
        ({"amp": True}, {"bf16": True}),
        ({"amp": True, "amp_dtype": "fp16"}, {"fp16": True}),
        ({"fuse_all_optimizer_ops": True}, {"optim": "adamw_torch_fused"}),
        ({"fuse_bn_act_ops": True}, {"torch_compile": True}),
        (
            {"loader_num_workers": 4, "loader_prefetch_factor": 8, "loader_pin_memory": True},
            {"dataloader_num_workers": 4, "dataloader_prefetch_factor": 8, "dataloader_pin_memory": True},
        ),
    ],
)
def test_trainer_gets_its_own_arguments(changes, arguments, advise) -> None:
    told, file = read(advise, "trainer", changes)
    assert told == arguments
    assert set(file.provenance) == set(changes)
    flags = " ".join(f"--{name} {value}" for name, value in arguments.items())
    assert f"command line: {flags}" in file.content


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_what_takes_the_place_of_the_scripts_ddp_is_built_as_that_was(name, advise) -> None:
    advice, job = advise({"fuse_grad_size_in_MB": 8.0, "last_comm_group_size_MB": 8.0})
    assert "find_unused_parameters" not in export(advice, job, name).content
    facts = job.facts.model_copy(update={"ddp": DdpFacts(find_unused_parameters=True)})
    content = export(advice, job.model_copy(update={"facts": facts}), name).content
    assert "bucket_cap_mb=8.0, find_unused_parameters=True)" in content


def test_a_bucket_that_the_framework_rounds_or_makes_first_is_told(advise) -> None:
    told, file = read(advise, "trainer", {"fuse_grad_size_in_MB": 4.4})
    assert told == {"ddp_bucket_cap_mb": 4}
    assert "measured at 4.4 MB, and it takes whole MB; the first bucket gets 4 MB too" in file.warnings[0]
    refused = export(*advise({"last_comm_group_size_MB": 0.5}), "trainer")
    assert "All buckets get one size" in refused.unmapped["last_comm_group_size_MB"]


def test_a_size_for_each_bucket_is_ddps_list_or_refused_with_the_way_out(advise) -> None:
    advised = advise({"bucket_cap_mb_list": "1+4+12.5"})
    assert "bucket_cap_mb_list=[1, 4, 12.5]" in export(*advised, "lightning").content
    for name in ("trainer", "accelerate"):
        sentence = export(*advised, name).unmapped["bucket_cap_mb_list"]
        assert sentence.endswith("give DistributedDataParallel bucket_cap_mb_list=[1, 4, 12.5] (torch 2.12).")


def test_the_optimizer_of_another_name_is_left_alone(advise) -> None:
    advice, job = advise({"fuse_all_optimizer_ops": True})
    facts = job.facts.model_copy(update={"optimizers": ("SGD",)})
    file = export(advice, job.model_copy(update={"facts": facts}), "trainer")
    assert file.unmapped["fuse_all_optimizer_ops"] == "`optim` would replace SGD by AdamW."


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_a_framework_has_no_words_for_is_told_with_the_way_out(name, advise) -> None:
    file = export(*advise({"nccl_comm_num": 2, "NCCL_SOCKET_NTHREADS": 4, "num_iteration_per_run": 10}), name)
    assert "synchronize() with the one of 10 steps before" in file.unmapped["num_iteration_per_run"]
    assert file.provenance == {}
    assert "has no plain setting for it" in file.unmapped["nccl_comm_num"]
    assert "source strategy.env (NCCL_SOCKET_NTHREADS)" in file.unmapped["NCCL_SOCKET_NTHREADS"]
    assert "run.sh carries all of them" in file.content


def test_accumulation_counts_on_top_of_the_script_own(advise) -> None:
    advice, job = advise({"gradient_merge": True, "gradient_merge_k_steps": 3})
    job = job.model_copy(update={"facts": job.facts.model_copy(update={"microbatches_per_step": 2.0})})
    for name in FRAMEWORKS:
        assert " 6" in export(advice, job, name).content.split("strategy_arguments")[-1]
    summed, job = advise({"gradient_merge": True, "gradient_merge_k_steps": 3, "gradient_merge_avg": False})
    assert "averages the merged gradients" in export(summed, job, "trainer").unmapped["gradient_merge"]


def shard(advised: tuple[Any, Any]) -> tuple[Any, Any]:
    advice, job = advised
    return advice, job.model_copy(update={"facts": job.facts.model_copy(update={"sharding": "fully_shard"})})


def test_hooks_are_settings_of_those_that_take_them_plainly(advise) -> None:
    half = {"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16"}
    assert "on GPUs only" in export(*advise(half), "lightning").unmapped["fp16_allreduce"]
    for name in ("accelerate", "lightning"):
        assert export(*advise(half, backend="nccl"), name).provenance.keys() == half.keys()
    content = export(*advise({"dgc": True, "dgc_rank": 4}, backend="nccl"), "accelerate").content
    assert "comm_hook=DDPCommunicationHookType.POWER_SGD" in content
    assert '"matrix_approximation_rank": 4' in content
    for name in ("accelerate", "lightning"):
        assert "can block gloo" in export(*advise({"dgc": True}), "accelerate").unmapped["dgc"]
        assert "has no plain setting" in export(*advise({"localsgd": True}), name).unmapped["localsgd"]


def test_sixteen_bit_reductions_of_a_sharded_model_are_no_hook_of_ddps(advise) -> None:
    half = {"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16"}
    for name in ("accelerate", "lightning"):
        file = export(*shard(advise(half)), name)
        assert not file.provenance
        for sentence in (file.unmapped[knob] for knob in half):
            assert "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)" in sentence


def test_the_files_are_clean_for_the_linter(advise, tmp_path: Path) -> None:
    cases = (
        {},
        {"fuse_grad_size_in_MB": 50.0, "num_threads": 4},
        {"fp16_allreduce": True, "amp": True, "gradient_merge": True},
        {"fuse_grad_size_in_MB": 8.0, "last_comm_group_size_MB": 8.0, "dgc": True},
    )
    for number, changes in enumerate(cases):
        for name in ("trainer", "accelerate", "lightning", "paddle-python"):
            content = export(*advise(changes, backend="nccl"), name).content
            (tmp_path / f"case{number}_{name.replace('-', '_')}.py").write_text(content)
    words = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "E9,F,I",
        "--no-cache",
        str(tmp_path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_deepspeed_counts_numbers_and_not_megabytes(advise) -> None:
    told, file = read(advise, "deepspeed", {"fuse_grad_size_in_MB": 8.0, "amp": True, "fp16_allreduce": True})
    assert told == {
        "zero_optimization": {"reduce_bucket_size": 2 * 2**20},
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
        "communication_data_type": "fp16",
    }
    assert "own engine was not timed" in " ".join(file.warnings)


def test_a_bundle_holds_files_of_the_framework_at_work_only(advise) -> None:
    advice, job = advise({"fuse_grad_size_in_MB": 8.0})
    alone = set(export_bundle(advice, job))
    for name, software in FRAMEWORKS.items():
        facts = job.facts.model_copy(update={"software": {software: "1.0"}})
        used = job.model_copy(update={"facts": facts})
        (added,) = set(export_bundle(advice, used)) - alone
        assert added == export(advice, used, name).filename


def test_what_deepspeeds_own_engine_was_measured_with_is_its_configuration_and_nobody_elses(advise) -> None:
    advice, job = advise({"fuse_grad_size_in_MB": 4.0, "fp16_allreduce": True, "sharding_overlap": True})
    assert "own engine was not timed" in export(advice, job, "deepspeed").content
    facts = job.facts.model_copy(update={"sharding": "DeepSpeed"})
    measured = job.model_copy(update={"facts": facts})
    file = export(advice, measured, "deepspeed")
    told = json.loads(file.content)
    assert told["zero_optimization"] == {"reduce_bucket_size": 2**20, "overlap_comm": True}
    assert told["communication_data_type"] == "fp16"
    assert file.warnings == ()
    refused = export(advice, measured, "accelerate")
    assert set(refused.unmapped) == {"fuse_grad_size_in_MB", "fp16_allreduce", "sharding_overlap"}
    assert all("merge ds_config.json" in sentence for sentence in refused.unmapped.values())
    assert "deepspeed" not in {info.name for info in list_at_work(job)}
    assert "deepspeed" in {info.name for info in list_at_work(measured)}
