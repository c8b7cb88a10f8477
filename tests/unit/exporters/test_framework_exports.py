"""Exports for frameworks: the words of each framework, what it has no words for, and what stays out of a bundle."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from advisor.exporters import export, export_bundle
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


def test_flags_say_what_only_the_call_sets(advise) -> None:
    content = export(*advise({"amp": True, "num_threads": 2}), "trainer").content
    assert "--bf16 True (without num_threads, which only the call of strategy_arguments() sets)" in content


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


def test_the_optimizer_of_another_name_is_left_alone(advise) -> None:
    advice, job = advise({"fuse_all_optimizer_ops": True})
    facts = job.facts.model_copy(update={"optimizers": ("SGD",)})
    file = export(advice, job.model_copy(update={"facts": facts}), "trainer")
    assert file.unmapped["fuse_all_optimizer_ops"] == "`optim` would replace SGD by AdamW."


@pytest.mark.parametrize("name", ["trainer", "accelerate", "lightning"])
def test_what_concerns_the_process_is_done_by_the_call(name, advise) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        told, file = read(advise, name, {"num_threads": 1})
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert told == {}
    assert set(file.provenance) == {"num_threads"}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_a_framework_has_no_words_for_is_told_with_the_way_out(name, advise) -> None:
    file = export(*advise({"nccl_comm_num": 2, "NCCL_SOCKET_NTHREADS": 4, "num_iteration_per_run": 10}), name)
    assert "synchronize() with the one of 10 steps before" in file.unmapped["num_iteration_per_run"]
    assert file.provenance == {}
    assert "has no setting for it" in file.unmapped["nccl_comm_num"]
    assert "source strategy.env (NCCL_SOCKET_NTHREADS)" in file.unmapped["NCCL_SOCKET_NTHREADS"]
    assert "run.sh carries all of them" in file.content


def test_accumulation_counts_on_top_of_the_script_own(advise) -> None:
    advice, job = advise({"gradient_merge": True, "gradient_merge_k_steps": 3})
    job = job.model_copy(update={"facts": job.facts.model_copy(update={"microbatches_per_step": 2.0})})
    for name in FRAMEWORKS:
        assert " 6" in export(advice, job, name).content.split("strategy_arguments")[-1]
    summed, job = advise({"gradient_merge": True, "gradient_merge_k_steps": 3, "gradient_merge_avg": False})
    assert "averages the merged gradients" in export(summed, job, "trainer").unmapped["gradient_merge"]


def test_hooks_of_lightning_are_for_gpus_only(advise) -> None:
    pytest.importorskip("lightning")
    refused = export(*advise({"localsgd": True, "localsgd_k_steps": 4}), "lightning")
    assert "on GPUs only" in refused.unmapped["localsgd"]
    told, file = read(advise, "lightning", {"localsgd": True, "localsgd_k_steps": 4}, backend="nccl")
    assert told["strategy"]._model_averaging_period == 4
    assert told["strategy"]._ddp_comm_state.start_localSGD_iter == 1
    assert set(file.provenance) == {"localsgd", "localsgd_k_steps"}


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
    sharded = job.model_copy(update={"facts": job.facts.model_copy(update={"sharding": "fully_shard"})})
    assert {info.name for info in list_at_work(sharded)} >= {"fsdp"}


def shard(advised: tuple[Any, Any]) -> tuple[Any, Any]:
    advice, job = advised
    return advice, job.model_copy(update={"facts": job.facts.model_copy(update={"sharding": "fully_shard"})})


def test_sixteen_bit_reductions_of_a_sharded_model_are_no_hook_of_ddps(advise) -> None:
    half = {"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16"}
    for name in ("accelerate", "lightning", "pytorch", "wrapper"):
        file = export(*shard(advise(half)), name)
        assert not file.provenance
        for sentence in (file.unmapped[knob] for knob in half):
            assert "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)" in sentence
        assert export(*advise(half, backend="nccl"), name).provenance.keys() == half.keys()
    assert "the model is sharded" in export(*advise(half), "fsdp").unmapped["fp16_allreduce"]
    file = export(*shard(advise(half)), "fsdp")
    assert file.provenance.keys() == half.keys()


def test_what_fully_shard_is_told_stays_apart_from_what_is_called_afterwards(advise) -> None:
    told = {"sharding_gather_ranks": 4, "fp16_allreduce": True}
    file = export(*shard(advise({**told, "sharding_reduce_buffers": 2})), "fsdp")
    space: dict[str, Any] = {}
    exec(compile(file.content, file.filename, "exec"), space)
    arguments, outermost = space["shard_arguments"](), space["shard_arguments"](outermost=True)
    assert (arguments.pop("reshard_after_forward"), str(arguments["mp_policy"].reduce_dtype)) == (
        4,
        "torch.float16",
    )
    assert arguments == outermost
    own = replace(arguments["mp_policy"], output_dtype=arguments["mp_policy"].reduce_dtype, reduce_dtype=None)
    assert space["shard_arguments"](own)["mp_policy"].output_dtype is own.output_dtype
    assert "shard_arguments" in file.content.splitlines()[0]
    assert "shard_arguments" not in export(*advise({"sharding_stage": 2}), "fsdp").content


def test_what_stays_gathered_is_not_gathered_ahead(advise) -> None:
    file = export(*advise({"sharding_stage": 2, "sharding_backward_prefetch": 2}), "fsdp")
    assert file.provenance.keys() == {"sharding_stage"}
    assert "nothing is gathered again" in file.unmapped["sharding_backward_prefetch"]


def test_a_sharded_model_gets_its_stage_and_threads(advise) -> None:
    file = export(*advise({"sharding_stage": 2, "num_threads": 2, "fuse_grad_size_in_MB": 8.0}), "fsdp")
    assert set(file.provenance) == {"sharding_stage", "num_threads"}
    assert "module.set_reshard_after_forward(False, recurse=False)" in file.content
    assert "the model is sharded" in file.unmapped["fuse_grad_size_in_MB"]
    compile(file.content, file.filename, "exec")


def test_fewer_ranks_to_gather_among_are_not_taken_back_by_the_stage(advise) -> None:
    file = export(*shard(advise({"sharding_stage": 3, "sharding_gather_ranks": 2})), "fsdp")
    assert file.provenance.keys() == {"sharding_stage", "sharding_gather_ranks"}
    assert "set_reshard_after_forward" not in file.content
    assert 'arguments["reshard_after_forward"] = 2' in file.content


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
    for other in ("pytorch", "accelerate"):
        refused = export(advice, measured, other)
        assert set(refused.unmapped) == {"fuse_grad_size_in_MB", "fp16_allreduce", "sharding_overlap"}
        assert all("merge ds_config.json" in sentence for sentence in refused.unmapped.values())
    assert "deepspeed" not in {info.name for info in list_at_work(job)}
    assert "deepspeed" in {info.name for info in list_at_work(measured)}
