"""Own knobs on a node: the operator's rules come first, ours are not the job's, each file has a copy."""

import os
import threading
from pathlib import Path

import pytest

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import Workload
from agent.backends.launch import SessionPlace
from agent.backends.own_knobs import settle_command
from agent.errors import Unlaunchable
from agent.files import Files
from agent.sessions.preparation import NodeContext, prepare_launch
from agent.settings import AgentSettings
from agent.trust.allowance import Allowance

RENDEZVOUS = "127.0.0.1:1"


class Watched(Files):
    """Looks as usual, and remembers which files were to be changed."""

    def __init__(self) -> None:
        self.changed: list[Path] = []

    def change_keys(self, path, values):
        self.changed.append(path)
        return super().change_keys(path, values)


@pytest.fixture
def prepare(tmp_path: Path):
    (tmp_path / "train.py").touch()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yaml").write_text("lr: 1\n")
    (tmp_path / "conf_a.yaml").write_text("rate: 1\n")
    files = Watched()

    def prepare(own, cold, roots=(tmp_path,), **fields):
        words = ("--model", "conf/a.yaml", "--data", "conf_a.yaml", "--batch", "1")
        workload = Workload(
            command=("torchrun", "train.py", *words), working_dir=str(tmp_path), own=own, **fields
        )
        assignment = Assignment(
            session_id="s", generation=1, job_id="j", node_rank=0, nnodes=1, workload=workload, cold=cold
        )
        settings = AgentSettings(
            server_url="http://127.0.0.1:1",
            work_dir=tmp_path.parent / "work",
            allow=Allowance(roots=roots, launchers=("torchrun",)),
        )
        context = NodeContext(
            settings, None, None, None, None, None, None, "marker", dict(os.environ), threading.Event(), None
        )  # type: ignore[arg-type]
        place = SessionPlace(
            tmp_path / "s" / "ranks", tmp_path / "s" / "s", "marker", "s-1", settings.runtime_script, files
        )
        return prepare_launch(assignment, RENDEZVOUS, place, context)

    return prepare, files


def test_what_we_set_for_own_knobs_is_not_the_jobs_environment(prepare) -> None:
    launch = prepare[0](["--batch=1,2"], {"batch": 2})
    assert launch.argv[-1] == "2"
    assert launch.environment["ADVISOR_KNOB_batch"] == "2"
    assert '"batch"' in launch.environment["ADVISOR_OWN"]


@pytest.mark.parametrize("cold", [{}, {"PYTHONPATH": "x"}])
def test_a_variable_that_the_job_names_as_its_knob_is_judged_by_its_name(prepare, cold) -> None:
    with pytest.raises(Unlaunchable, match="does not let a workload set PYTHONPATH"):
        prepare[0](["$PYTHONPATH=x,y"], cold)


def test_no_file_is_opened_that_the_rules_do_not_reach(prepare) -> None:
    act, files = prepare
    with pytest.raises(Unlaunchable, match="working_dir"):
        act(["conf/a.yaml:lr=1,2"], {"lr": 2}, roots=(Path("/usr"),))
    assert not files.changed
    launch = act(["conf/a.yaml:lr=1,2"], {"lr": 2})
    assert files.changed
    assert launch.files == {"changed0/a.yaml": "lr: 2\n"}


def test_two_files_become_two_copies(prepare, tmp_path: Path) -> None:
    own, cold = ["conf/a.yaml:lr=1,2", "conf_a.yaml:rate=1,3"], {"lr": 2, "rate": 3}
    launch = prepare[0](own, cold)
    places = [str(tmp_path / "s" / f"changed{n}" / name) for n, name in enumerate(("a.yaml", "conf_a.yaml"))]
    assert [launch.argv[-5], launch.argv[-3]] == places
    assert launch.files == {"changed0/a.yaml": "lr: 2\n", "changed1/conf_a.yaml": "rate: 3\n"}


def test_a_path_that_is_too_long_is_said(tmp_path: Path) -> None:
    name = f"{'n' * 300}.yaml"
    own = Workload(command=("torchrun", "train.py", name), own=(f"{name}:lr=1,2",)).own
    with pytest.raises(Unlaunchable, match="does not exist on this node"):
        settle_command(own, {"lr": 2}, ("torchrun", "train.py", name), tmp_path, tmp_path)


def test_a_training_gets_an_option_that_its_command_lacks_only_where_the_advice_changes_it(
    tmp_path: Path,
) -> None:
    own = Workload(
        command=("torchrun", "train.py"), own=({"name": "tp", "at": "--tp", "values": [1, 2], "baseline": 1},)
    ).own
    for typed, tp, words in (
        (("sft",), 2, ["--tp", "2", "sft"]),
        (("sft",), 1, ["sft"]),
        (("--tp=4",), 2, ["--tp=2"]),
    ):
        command, _ = settle_command(own, {"tp": tp}, ("torchrun", "train.py", *typed), tmp_path, tmp_path)
        assert command == ["torchrun", "train.py", *words]
