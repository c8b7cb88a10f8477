"""Which knobs a program takes, and how they get into its command."""

import pytest
from pydantic import ValidationError

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.reach import fill_command, list_given, list_taken, out_of_reach_because
from advisor.protocol.training.workload import Workload, WorkloadKind


def make_command(*words: str, **fields) -> Workload:
    return Workload(kind=WorkloadKind.COMMAND, command=("train", *words), **fields)


def test_a_command_takes_what_stands_in_it_and_what_it_names() -> None:
    workload = make_command(
        "--mb=${fuse_grad_size_in_MB:-8}",
        "${amp:-on}",
        "${amp}",
        "${node_rank}",
        "$${HOME}",
        knobs={"num_threads": 2},
    )
    assert list_given(workload) == {"fuse_grad_size_in_MB": 8.0, "amp": True, "num_threads": 2}
    filled = fill_command(
        workload.command, {**list_given(workload), "fuse_grad_size_in_MB": 0.25}, {"node_rank": "1"}
    )
    assert filled == ("train", "--mb=0.25", "1", "1", "1", "${HOME}")
    assert out_of_reach_because(workload, CATALOGUE["amp"], list_taken(workload)) is None


def test_a_knob_without_its_switch_is_out_of_reach() -> None:
    workload = make_command("${localsgd_k_steps}")
    reason = out_of_reach_because(workload, CATALOGUE["localsgd_k_steps"], list_taken(workload))
    assert reason == "It means nothing without localsgd, which the command does not take."


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"command": ("train", "${num_thread}")}, "num_thread is neither a knob"),
        ({"command": ("train", "${num_threads:-0}")}, "num_threads is 0"),
        ({"command": ("train", "${num_threads:-many}")}, "num_threads is 'many', but must be a number"),
        (
            {"command": ("train", "${num_threads:-2}"), "knobs": {"num_threads": 4}},
            "num_threads has two baselines",
        ),
        ({"command": ("train",)}, "takes no knob, so there is nothing to tune"),
        ({"command": ("train", "${num_threads}"), "pattern": "(?P<seconds>.)"}, "have no meaning"),
        ({"command": ("train", "${num_threads}"), "pattern": "(?P<loss>.)"}, "finds no time"),
        ({"command": ("train", "${num_threads}"), "pattern": "("}, "is no usable regular expression"),
        (
            {"command": ("train",), "kind": "pytorch", "knobs": {"num_threads": 4}},
            "for workloads of kind command",
        ),
    ],
)
def test_a_workload_of_no_sense_is_refused_with_what_to_do(workload, sentence) -> None:
    with pytest.raises(ValidationError, match=sentence.replace("(", r"\(")):
        JobSpec.model_validate({"workload": {"kind": "command", **workload}})
