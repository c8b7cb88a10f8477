"""The two launches of a race: one command in two environments, and the job that holds both."""

from pathlib import Path

import pytest

from advisor.cli.exits import CommandFailed
from advisor.cli.tuning.race_job import AskedRace
from advisor.cli.tuning.two_sides import Side, vary
from advisor.protocol.kinds import Effect

HOME = Path("/home/maria/run")
A = Side.read("OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 train.py", HOME)


def test_b_is_a_with_another_python_and_further_variables() -> None:
    b = vary(A, python="/opt/new/bin/python", variables=["OMP_NUM_THREADS=2", "NOTE=a b"])
    assert b.command == (
        "OMP_NUM_THREADS=2 'NOTE=a b' /opt/new/bin/python -m torch.distributed.run --nproc-per-node 2 train.py"
    )


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"variables": ["OMP"]}, "--env-b OMP: that is no variable."),
        ({"worktree": Path("/nowhere/at/all")}, "--worktree-b /nowhere/at/all: there is no such folder."),
    ],
)
def test_what_cannot_be_is_named(option: dict[str, object], named: str) -> None:
    with pytest.raises(CommandFailed, match=named):
        vary(A, **option)  # type: ignore[arg-type]


def test_a_launcher_of_its_own_keeps_its_interpreter() -> None:
    with pytest.raises(CommandFailed, match="neither torchrun nor python"):
        vary(Side.read("accelerate launch train.py", HOME), python="python3.12")


def test_two_worktrees_are_started_in_the_same_way_and_both_protected(tmp_path: Path) -> None:
    home, other = tmp_path / "run", tmp_path / "idea"
    for folder in (home, other):
        folder.mkdir()
    a = Side.read("X=1 torchrun --nproc-per-node 2 train.py", home)
    spec = AskedRace(a, vary(a, worktree=other), Effect.EXACT, error=0.002).build_spec()
    own = spec.workload.own[0]
    assert own.words["A"] == (
        "X=1", "env", "-C", str(home), "torchrun", "--nproc-per-node", "2", "train.py",
    )  # fmt: skip
    assert own.words["B"][:4] == ("X=1", "env", "-C", str(other))
    assert spec.workload.protect == (str(other), str(home))
    assert spec.error == 0.002


def test_one_folder_needs_no_env(tmp_path: Path) -> None:
    a = Side.read("torchrun --nproc-per-node 2 train.py", tmp_path)
    spec = AskedRace(a, vary(a, variables=["X=1"]), Effect.EXACT).build_spec()
    assert spec.workload.command == a.words
    assert spec.workload.own[0].words["B"][0] == "X=1"
