"""What is refused before anything is started for a job: a Paddle training that is not said to be one."""

import sys
from pathlib import Path

import pytest

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.preflight import check_here
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.training.workload import Workload, WorkloadKind


def specify(folder: Path, words: list[str], kind: WorkloadKind = WorkloadKind.PYTORCH) -> JobSpec:
    return JobSpec(workload=Workload(kind=kind, command=tuple(words), working_dir=str(folder)))


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("train.py", "import paddle\n", [sys.executable, "train.py", "--lr", "1"]),
        ("train.py", "", [sys.executable, "-m", "paddle.distributed.launch", "train.py"]),
        ("start.sh", "exec fleetrun train.py\n", ["bash", "start.sh"]),
    ],
)
def test_a_paddle_training_is_refused_with_the_command_to_type(
    name: str, source: str, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(source)
    with pytest.raises(CommandFailed) as refused:
        check_here(specify(tmp_path, words), {})
    assert refused.value.exit_code is Exit.INVALID_SPEC
    assert "trains with PaddlePaddle" in refused.value.what
    assert refused.value.hint.startswith(f"Type: advisor tune --kind paddle -- {words[0]} ")
    check_here(specify(tmp_path, words, WorkloadKind.PADDLE), {})
