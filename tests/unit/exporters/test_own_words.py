"""The lines for people who own the script: every lever has PyTorch's word, and the lines are true Python and shell."""

import ast
import shlex

import pytest

from advisor.answers.report import export_bundle
from advisor.exporters.own_lines import list_own_lines
from advisor.exporters.words import VARIABLES as OF_ENVIRONMENT
from advisor.exporters.words import WORDS
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.training.workload import Recomputed, WorkloadKind

VARIABLES = {name for name in CATALOGUE if name.isupper()}


def told(advice, job) -> list[str]:
    return [f"{line.text} | {line.where}".removesuffix(" | ") for line in list_own_lines(advice, job)]


def test_every_row_of_the_words_is_of_a_knob() -> None:
    assert set(WORDS) | set(OF_ENVIRONMENT) <= set(CATALOGUE)


def test_every_knob_that_is_varied_has_a_word_of_pytorchs() -> None:
    assert not [
        name
        for name, knob in CATALOGUE.items()
        if not knob.carried and not knob.title and name not in VARIABLES
    ]
    titles = [knob.title for knob in CATALOGUE.values() if knob.title]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"num_threads": 1}, "OMP_NUM_THREADS=1 | before the launch command"),
        (
            {"fuse_grad_size_in_MB": 4.0, "last_comm_group_size_MB": 4.0},
            "DDP(…, bucket_cap_mb=4)",
        ),
        ({"fuse_grad_size_in_MB": 4.0}, "DDP(…, bucket_cap_mb_list=[1, 4])"),
        ({"last_comm_group_size_MB": 4.0}, "DDP(…, bucket_cap_mb_list=[4, 25])"),
        ({"bucket_cap_mb_list": "1+4+12.5"}, "DDP(…, bucket_cap_mb_list=[1, 4, 12.5])"),
        (
            {"num_iteration_per_drop_scope": 100},
            "gc.freeze(); gc.disable() | before the loop, and gc.collect() after every 100 steps",
        ),
        ({"loader_num_workers": 2}, "DataLoader(…, num_workers=2)"),
        ({"fp16_allreduce": True}, "ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)"),
        ({"fuse_all_optimizer_ops": True}, "optimizer(…, fused=True)"),
        ({"batched_grad_copy": True}, "DDP(…, batched_grad_copy=True)"),
        ({"broadcast_buffers": False}, "DDP(…, forward_sync_buffers=False)"),
    ],
)
def test_a_change_is_written_in_the_frameworks_own_words(advise, changes, line: str) -> None:
    assert told(*advise(changes)) == [line]


def test_a_line_that_the_trainings_torch_does_not_take_says_from_which_on(advise) -> None:
    advice, job = advise({"fuse_grad_size_in_MB": 4.0})
    job = job.model_copy(update={"facts": job.facts.model_copy(update={"torch_version": "2.11.0+cu130"})})

    assert told(advice, job) == ["DDP(…, bucket_cap_mb_list=[1, 4]) | from torch 2.12 on"]
    advice, _ = advise({"broadcast_buffers": False})
    assert told(advice, job) == ["DDP(…, broadcast_buffers=False) | and build buffers alike on every rank"]


def test_variables_stand_in_one_line_for_the_shell(advise) -> None:
    lines = told(*advise({"num_threads": 2, "NCCL_BUFFSIZE": 2**23}, backend="nccl", nodes=2, world_size=4))
    words = shlex.split(lines[0].partition(" | ")[0])
    assert words == ["OMP_NUM_THREADS=2", f"NCCL_BUFFSIZE={2**23}"]


def test_a_script_that_sets_its_threads_is_changed_itself(advise) -> None:
    advice, job = advise({"num_threads": 2})
    job = job.model_copy(update={"facts": job.facts.model_copy(update={"sets_threads": True})})

    assert told(advice, job) == ["torch.set_num_threads(2) | in place of the script's own"]


def test_a_variable_in_the_command_is_replaced_there(advise) -> None:
    command = ("env", "OMP_NUM_THREADS=8", "torchrun", "--nproc-per-node", "2", "train.py")

    assert told(*advise({"num_threads": 2}, command=command)) == [
        "OMP_NUM_THREADS=2 | in the command, in place of OMP_NUM_THREADS=8"
    ]


def test_a_change_without_a_line_is_left_to_the_command(advise) -> None:
    assert told(*advise({"nccl_comm_num": 2})) == []


def test_other_frameworks_take_their_names_from_the_exported_file(advise) -> None:
    assert told(*advise({"num_threads": 2}, kind=WorkloadKind.PADDLE)) == []


@pytest.mark.parametrize(
    ("library", "start"),
    [
        ("transformers", "TrainingArguments(…, ddp_bucket_cap_mb=4"),
        ("accelerate", "Accelerator(…, kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=4"),
        ("lightning", "Trainer(…, strategy=DDPStrategy(bucket_cap_mb="),
    ],
)
def test_a_library_gets_its_own_arguments(advise, library: str, start: str) -> None:
    advice, job = advise({"fuse_grad_size_in_MB": 4.0, "last_comm_group_size_MB": 4.0})
    assert job.facts is not None
    facts = job.facts.model_copy(update={"software": {library: "1"}})
    lines = told(advice, job.model_copy(update={"facts": facts}))
    assert lines[0].startswith(start)
    ast.parse(lines[0].replace("…, ", ""))


@pytest.mark.parametrize(
    ("software", "by", "line"),
    [
        ({}, "checkpoint", "block(x) | in place of checkpoint(block, x)"),
        (
            {},
            "gradient_checkpointing",
            "leave out model.gradient_checkpointing_enable() | or, from transformers 5.23 on, "
            "model.activation_checkpointing_enable()",
        ),
        ({"transformers": "5.22.2"}, "", "TrainingArguments(…, gradient_checkpointing=False)"),
        (
            {"transformers": "5.23.0"},
            "gradient_checkpointing",
            "TrainingArguments(…, activation_checkpointing=False)",
        ),
        ({"transformers": "5.23.0"}, "checkpoint", "block(x) | in place of checkpoint(block, x)"),
    ],
)
def test_activations_are_kept_by_what_has_them_computed_again_in_the_words_of_its_release(
    advise, software, by: str, line: str
) -> None:
    knob = "activation_checkpointing"
    advice, job = advise({knob: False}, script={knob: True})
    assert job.facts is not None
    seen = Recomputed(per_step=4, by=by)
    facts = job.facts.model_copy(update={"software": software, "recomputed": seen})
    assert told(advice, job.model_copy(update={"facts": facts})) == [line]


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_what_takes_the_place_of_the_scripts_own_ddp_says_what_that_said(advise, library: str) -> None:
    advice, job = advise({"fuse_grad_size_in_MB": 4.0, "last_comm_group_size_MB": 4.0})
    assert job.facts is not None
    built = job.facts.ddp.model_copy(update={"find_unused_parameters": True})
    facts = job.facts.model_copy(update={"software": {library: "1"}, "ddp": built})
    assert "bucket_cap_mb=4, find_unused_parameters=True)" in told(
        advice, job.model_copy(update={"facts": facts})
    )[0].replace("4.0", "4")


def test_every_lines_knobs_are_changes_and_no_change_is_told_twice(advise) -> None:
    values = {
        name: knob.choices[-1] if knob.choices else (not knob.default) if knob.kind is bool else knob.high
        for name, knob in CATALOGUE.items()
        if not knob.carried and name not in {"localsgd", "adaptive_localsgd", "gradient_merge", "dgc", "amp"}
    }
    values["bucket_cap_mb_list"] = "1+4"
    for name, value in values.items():
        advice, job = advise({name: value})
        lines = list_own_lines(advice, job)
        assert all(line.knobs == (name,) and line.text for line in lines), name
        assert len(lines) <= 1


def test_files_that_carry_none_of_the_changes_are_no_part_of_a_bundle(advise) -> None:
    names = set(export_bundle(*advise({"num_iteration_per_run": 10})))
    assert names == {"strategy.json", "run.sh", "fleet_advisor_runtime.pyz", "report.html"}
