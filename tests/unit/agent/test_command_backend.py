"""What is started for command and Paddle workloads, and what cannot be."""

import json
import os
import sys
from pathlib import Path

import pytest

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.inherited import race_away
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.workload import Workload, WorkloadKind
from agent.backends import BACKENDS
from agent.backends.launch import Launch, SessionPlace
from agent.errors import Unlaunchable


@pytest.fixture
def build(tmp_path: Path):
    """Build the launch of a workload on node 1 of 2."""

    def build(kind: WorkloadKind, *command: str, cold=None, environment=None, **fields) -> Launch:
        workload = Workload(kind=kind, command=command, working_dir=str(tmp_path), **fields)
        assignment = Assignment(
            session_id="s",
            generation=1,
            job_id="j",
            node_rank=1,
            nnodes=2,
            workload=workload,
            cold=cold or {},
        )
        place = SessionPlace(tmp_path, tmp_path / "control", "agent", "session", Path("launch.py"))
        wanted = BACKENDS[kind].read(assignment, "127.0.0.1:4567", place)
        return BACKENDS[kind].build_launch(wanted, environment or dict(os.environ))

    return build


def test_every_kind_of_workload_has_a_backend() -> None:
    assert set(BACKENDS) == set(WorkloadKind)


def test_a_command_is_filled_in_for_its_node(build, tmp_path) -> None:
    (tmp_path / "train.py").touch()
    launch = build(
        WorkloadKind.COMMAND, sys.executable, "train.py", "--master=${master_addr}:${master_port}", "${nodes}",
        "${node_rank}", "${results_file}", "${num_threads:-2}", cold={"num_threads": 8},
        environment={"ADVISOR_TOKEN": "secret", "PATH": os.environ["PATH"]},
    )  # fmt: skip
    results = str(tmp_path / "results.jsonl")
    assert launch.argv[1:] == ("train.py", "--master=127.0.0.1:4567", "2", "1", results, "8")
    assert launch.environment["ADVISOR_RESULTS"] == results
    assert json.loads(launch.environment["ADVISOR_STRATEGY"]) == {"num_threads": 8}
    assert "ADVISOR_TOKEN" not in launch.environment
    assert launch.script == tmp_path / "train.py"


def test_a_variable_that_the_strategy_takes_away_is_not_inherited(build) -> None:
    environment = {"CUDA_LAUNCH_BLOCKING": "1", "PATH": os.environ["PATH"]}
    own = tuple(OwnKnob.model_validate(fields) for fields in race_away(environment))
    for cold, stays in (({}, True), ({"inherited_CUDA_LAUNCH_BLOCKING": "unset"}, False)):
        launch = build(
            WorkloadKind.COMMAND, sys.executable, "-V", own=own, cold=cold, environment=environment
        )
        assert ("CUDA_LAUNCH_BLOCKING" in launch.environment) == stays


def test_a_program_that_is_not_there_is_named_with_what_to_do(build) -> None:
    with pytest.raises(Unlaunchable, match=r"no-such-program was not found on this node .* full path"):
        build(WorkloadKind.COMMAND, "no-such-program", "${num_threads}")
    with pytest.raises(Unlaunchable, match=r"\./run\.sh was not found in"):
        build(WorkloadKind.COMMAND, "./run.sh", "${num_threads}")


def test_a_paddle_script_gets_the_preload_before_its_own_path_and_only_the_changes(build) -> None:
    launch = build(
        WorkloadKind.PADDLE, sys.executable, "train.py", cold={"fuse_grad_size_in_MB": 4.0},
        environment={"PYTHONPATH": "/own", "PATH": os.environ["PATH"]},
    )  # fmt: skip
    preload, own = launch.environment["PYTHONPATH"].split(os.pathsep)
    assert own == "/own"
    assert {path.name for path in Path(preload).glob("*.py")} == {
        "sitecustomize.py",
        "fleet_advisor_paddle.py",
    }
    assert json.loads(launch.environment["ADVISOR_STRATEGY"]) == {"fuse_grad_size_in_MB": 4.0}
    assert launch.argv[1:] == ("train.py",)


def test_words_that_no_file_can_be_called_are_words(build, tmp_path) -> None:
    (tmp_path / "run.sh").touch()
    launch = build(WorkloadKind.COMMAND, "bash", "a" * 300, "run.sh", "${num_threads}")
    assert launch.script == tmp_path / "run.sh"
