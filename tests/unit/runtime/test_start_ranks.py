"""Which launches are simple enough to be started without torchrun, and what their ranks are told."""

import os
from pathlib import Path

import pytest

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import Workload
from agent.backends.injection import read_typed
from agent.backends.launch import SessionPlace
from agent.backends.pytorch import START_RANKS, build_launch
from agent.runtime.inject import start_ranks

GANG = [
    "--nnodes=1",
    "--node-rank=0",
    "--rdzv-backend=static",
    "--master-addr=h",
    "--master-port=1",
    "--max-restarts=0",
]


@pytest.mark.parametrize(
    "words",
    [
        ["--nproc-per-node=2", "train.py", "--lr", "1"],
        ["--nproc_per_node", "2", "train.py"],
        ["train.py"],
        ["-m", "package.train", "-x"],
    ],
)
def test_number_of_processes_is_understood(words: list[str]) -> None:
    understood = start_ranks.parse([*GANG, *words])
    assert understood is not None
    options, script = understood
    assert options.get("nproc-per-node", "1") == ("2" if "2" in "".join(words[:2]) else "1")
    assert script == words[-len(script) :]
    assert script[0] in {"train.py", "-m"}


@pytest.mark.parametrize(
    "words",
    [
        [*GANG, "--nproc-per-node=gpu", "train.py"],
        [*GANG, "--nproc-per-node=0", "train.py"],
        [*GANG, "--nproc-per-node", "2", "--tee", "3", "train.py"],
        [*GANG, "-r", "3", "train.py"],
        [*GANG, "--max-restarts=3", "train.py"],
        [*GANG, "--standalone", "train.py"],
        [*GANG, "--nproc-per-node=2"],
        [*GANG, "--nproc-per-node"],
        [*GANG, "-m"],
        ["--nproc-per-node=2", "train.py"],
    ],
)
def test_anything_else_is_left_to_torchrun(words: list[str]) -> None:
    assert start_ranks.parse(words) is None


@pytest.mark.parametrize("name", ["PET_TEE", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "PYTHON_EXEC"])
def test_variable_of_torchruns_is_left_to_torchrun(name: str) -> None:
    assert start_ranks._wants_torchrun({name: "1"})
    assert not start_ranks._wants_torchrun({"HOME": "/"})


def test_what_the_agent_gives_every_launch_needs_no_torchrun(tmp_path: Path) -> None:
    workload = Workload(command=("torchrun", "--nproc-per-node", "2", "train.py"), working_dir=str(tmp_path))
    (tmp_path / "train.py").write_text("")
    assignment = Assignment(
        session_id="s", generation=1, job_id="j", node_rank=0, nnodes=1, workload=workload
    )
    place = SessionPlace(tmp_path, tmp_path / "s", "agent", "session", tmp_path / "launch.py")
    environment = {"PATH": os.environ["PATH"], "PET_NNODES": "2"}
    launch = build_launch(read_typed(assignment, "127.0.0.1:2900", place), environment)
    assert launch.argv[1] == str(START_RANKS)
    assert start_ranks.parse(launch.argv[2:]) is not None
    assert not start_ranks._wants_torchrun(launch.environment)


def test_ranks_are_numbered_across_nodes() -> None:
    options = {"nproc-per-node": "2", "nnodes": "3", "node-rank": "1", "master-addr": "h", "master-port": "1"}
    told = start_ranks.describe_rank(options, 1, {"OMP_NUM_THREADS": "4", "RANK": "9"})
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"], told["GROUP_RANK"]) == ("3", "1", "6", "1")
    assert told["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in start_ranks.describe_rank({**options, "nproc-per-node": "1"}, 0, {})
