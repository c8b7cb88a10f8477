"""What is started for an assignment."""

import sys
from pathlib import Path

import pytest

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import Workload
from agent.backends.injection import read_typed
from agent.backends.launch import SessionPlace
from agent.backends.pytorch import START_RANKS, build_launch
from agent.errors import Unlaunchable


@pytest.fixture
def place(tmp_path):
    return SessionPlace(
        tmp_path / "session", tmp_path / "socket", "agent-1", "s-1", Path("/runtime/launch.py")
    )


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("")
    return folder


def _assign(project, command, **more):
    more = {"node_rank": 0, "nnodes": 1} | more
    workload = Workload(command=tuple(command.split()), working_dir=str(project), **more.pop("workload", {}))
    return Assignment(session_id="s", generation=1, job_id="j", workload=workload, **more)


def _build(assignment, rendezvous, place, environment):
    return build_launch(read_typed(assignment, rendezvous, place), environment)


def _install(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder


def test_torchrun_is_started_by_its_own_python(place, project, tmp_path):
    python = _install(tmp_path / "venv", "python3", "") / "python3"
    path = _install(tmp_path / "bin", "torchrun", f"#!{python}\nimport torch\n")
    assignment = _assign(
        project, "torchrun --nproc-per-node 2 --nnodes 1 train.py --lr 1", node_rank=1, nnodes=2
    )
    launch = _build(assignment, "127.0.0.1:4711", place, {"PATH": str(path)})
    assert launch.argv == (
        str(python), str(START_RANKS), "--nnodes=2", "--node-rank=1", "--rdzv-backend=static",
        "--master-addr=127.0.0.1", "--master-port=4711", "--max-restarts=0", "--nproc-per-node", "2",
        "/runtime/launch.py", "train.py", "--lr", "1",
    )  # fmt: skip
    assert launch.environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in launch.environment, "NCCL chooses for itself, as it does without us"
    assert "--nnodes 1: replaced" in launch.warnings[0]


def test_interpreter_with_spaces_is_found(place, project, tmp_path):
    python = _install(tmp_path / "my venv", "python3.11", "") / "python3.11"
    path = _install(tmp_path / "bin", "torchrun", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    launch = _build(_assign(project, "torchrun train.py"), "127.0.0.1:1", place, {"PATH": str(path)})
    assert launch.argv[:2] == (str(python), str(START_RANKS))


def test_foreign_torchrun_is_started_as_it_is(place, project, tmp_path):
    path = _install(tmp_path / "bin", "torchrun", "#!/usr/bin/env bash\n")
    launch = _build(_assign(project, "torchrun train.py"), "127.0.0.1:1", place, {"PATH": str(path)})
    assert launch.argv[0] == str(path / "torchrun")


def test_relative_launcher_is_looked_up_in_the_working_directory(place, project):
    _install(project / "venv", "torchrun", "#!/usr/bin/env bash\n")
    launch = _build(_assign(project, "./venv/torchrun train.py"), "127.0.0.1:1", place, {"PATH": "/nowhere"})
    assert launch.argv[0] == str(project / "venv" / "torchrun")


def test_torch_of_the_agent_is_used_when_no_torchrun_is_on_path(place, project):
    launch = _build(_assign(project, "torchrun train.py"), "127.0.0.1:1", place, {"PATH": "/nowhere"})
    assert launch.argv[:2] == (sys.executable, str(START_RANKS))


def test_plain_python_keeps_its_options(place, project):
    assignment = _assign(project, f"{sys.executable} -B train.py --lr 1")
    launch = _build(assignment, "127.0.0.1:1", place, {})
    assert launch.argv == (sys.executable, "-B", "train.py", "--lr", "1")
    assert launch.script == project / "train.py"


def test_environment_is_ours_the_jobs_and_nobodys_secret(place, project):
    assignment = _assign(
        project,
        "python train.py",
        cold={
            "NCCL_NSOCKS_PERTHREAD": 4,
            "conv_workspace_size_limit": 4000,
            "NCCL_DEBUG": "INFO",
            "LD_PRELOAD": "evil",
        },
        workload={"environment": {"DATA": "/data", "ADVISOR_SESSION": "forged"}, "samples_per_step": 8},
    )
    inherited = {
        "ADVISOR_AGENT_TOKEN": "adv_secret",
        "ADVISOR_TOKEN": "x",
        "PET_STANDALONE": "1",
        "HOME": "/h",
    }
    environment = _build(assignment, "127.0.0.1:1", place, inherited).environment
    assert "adv_secret" not in environment.values()
    assert not {"ADVISOR_TOKEN", "PET_STANDALONE", "LD_PRELOAD", "NCCL_DEBUG"} & set(environment)
    assert environment["HOME"] == "/h"
    assert environment["DATA"] == "/data"
    assert environment["NCCL_NSOCKS_PERTHREAD"] == "4"
    assert environment["CUDNN_CONV_WSCAP_DBG"] == "4000"
    assert environment["ADVISOR_SESSION"] == "s-1"
    assert environment["ADVISOR_AGENT"] == "agent-1"
    assert environment["ADVISOR_SAMPLES_PER_STEP"] == "8"


def test_interface_of_the_job_is_kept(place, project):
    assignment = _assign(
        project, "torchrun train.py", nnodes=2, workload={"environment": {"GLOO_SOCKET_IFNAME": "ib0"}}
    )
    assert _build(assignment, "127.0.0.1:1", place, {}).environment["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.mark.parametrize(
    ("command", "more", "sentence"),
    [
        ("torchrun missing.py", {}, "missing.py does not exist"),
        ("/nowhere/torchrun train.py", {}, "/nowhere/torchrun was not found"),
        ("/nowhere/python train.py", {}, "/nowhere/python does not exist"),
        ("python train.py", {"nnodes": 2}, "single process, but the job wants 2 nodes"),
    ],
)
def test_launch_is_refused_with_a_remedy(place, project, command, more, sentence):
    with pytest.raises(Unlaunchable, match=sentence):
        _build(_assign(project, command, **more), "127.0.0.1:1", place, {})


def test_missing_working_directory_is_named(place, project):
    with pytest.raises(Unlaunchable, match=r"working directory .* does not exist"):
        _build(_assign(project / "gone", "python train.py"), "127.0.0.1:1", place, {})
