"""The runtime in ranks that it was not put in front of: through the environment, or started by the script itself."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from .fake_agent import RUNTIME, Session, launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

BLOCKS = [measure("base"), measure("buckets", {"fuse_grad_size_in_MB": 0.0001})]


def check_both_blocks(session: Session) -> None:
    assert [message["kind"] for message in session.messages] == ["hello", "race", "race"], session.log
    assert session.hello["facts"]["world_size"] == 2
    assert session.result("base")["steps"] == 4
    tuned = session.result("buckets")
    assert set(tuned["consumed"]) == {"fuse_grad_size_in_MB"}, tuned["not_consumed"]


def test_shell_script_is_measured_and_its_helpers_are_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import os, sys\n"
        "with open(os.path.join(os.environ['OUT'], 'started'), 'a') as file:\n"
        "    print(sys.modules[__name__].__file__, file=file)\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(
        "python -c 'import torch.distributed'\n"
        "torchrun --standalone --nproc-per-node 2 with_helpers.py\n"
        "echo torchrun ended with $?\n"
    )
    path = f"{RUNTIME / 'injected'}:{own}"
    session = launch(
        tmp_path,
        ["bash", str(script)],
        BLOCKS,
        injection="command",
        variables={"PYTHONPATH": path, "ADVISOR_STAY_S": "1"},
    )
    check_both_blocks(session)
    assert session.log.count("helper trained") == 2, session.log
    assert "fleet advisor" not in session.log
    # Nobody ended these ranks within their second of patience, so the script must not take them for trained.
    assert "torchrun ended with 1" in session.log
    assert not list(tmp_path.glob("ended.*"))
    started = (tmp_path / "started").read_text().split()
    assert set(started) == {str(own / "sitecustomize.py")}
    assert len(started) >= 8  # python, torchrun, two ranks, two helpers, two loader workers


def test_a_training_of_several_in_no_process_group_is_told(tmp_path: Path) -> None:
    variables = {"WORLD_SIZE": "2"}
    alone = launch(tmp_path, ["python", "no_ddp.py"], BLOCKS, injection="command", variables=variables)
    assert alone.code == 0, alone.log
    assert [message["code"] for message in alone.messages] == ["outside_group"], alone.log
    assert "5 optimizer steps before it ended" in alone.find("trouble")["sentence"]


def test_ranks_that_accelerate_launches_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    # The launcher's switch for several processes; the script itself chooses the CPU.
    command = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "accelerate_script.py"]
    session = launch(tmp_path, command, BLOCKS, injection="command")
    check_both_blocks(session)
    assert "accelerate_script.py" in session.hello["facts"]["sources"]


def test_ranks_that_the_script_spawns_are_measured(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    session = launch(tmp_path, [sys.executable, "spawned_ranks.py", port], BLOCKS, injection="command")
    check_both_blocks(session)
    assert session.hello["facts"]["local_world_size"] == 2
    assert "spawned_ranks.py" in session.hello["facts"]["sources"]


@pytest.mark.parametrize(
    ("steps", "ending", "code", "kinds"),
    [
        ("3", "0", 0, ["trouble"]),
        ("3", "3", 3, []),
        ("3", "raise", 1, []),
        ("0", "0", 0, []),
    ],
    ids=["ended", "failed", "crashed", "only prepared"],
)
def test_ending_is_reported_when_the_script_trained_and_ended_well(
    steps: str, ending: str, code: int, kinds: list[str], tmp_path: Path
) -> None:
    session = launch(tmp_path, [sys.executable, "one_process.py", steps, ending], [], injection="command")
    assert session.code == code, session.log
    assert [message["kind"] for message in session.messages] == kinds


def test_script_tells_its_steps_itself(tmp_path: Path) -> None:
    session = launch(tmp_path, ["explicit_steps.py"], BLOCKS, injection="none")
    check_both_blocks(session)
    assert session.result("base")["samples_per_step"] == 10
    assert session.hello["facts"]["optimizers"] == []


def test_script_with_the_three_lines_trains_by_itself(tmp_path: Path) -> None:
    variables = {"PYTHONPATH": str(RUNTIME / "api")}
    session = launch(tmp_path, ["explicit_steps.py"], patched=False, variables=variables)
    assert session.code == 0, session.log
    session = launch(tmp_path, ["explicit_steps.py"], BLOCKS, variables=variables)
    check_both_blocks(session)


@pytest.mark.parametrize("script", ["hf_callback.py", "lightning_callback.py"])
def test_callback_starts_the_runtime(script: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers" if script.startswith("hf") else "lightning")
    session = launch(tmp_path, [script], BLOCKS, injection="none")
    check_both_blocks(session)
    assert session.result("base")["samples_per_step"] == 32
