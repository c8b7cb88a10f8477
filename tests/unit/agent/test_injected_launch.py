"""What is started when the runtime does not stand in front of the script."""

from pathlib import Path

import pytest

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import Workload
from agent.backends.injection import read_typed
from agent.backends.launch import SessionPlace
from agent.backends.pytorch import build_launch
from agent.errors import Unlaunchable

RUNTIME = Path("/opt/runtime")


@pytest.fixture
def place(tmp_path):
    return SessionPlace(tmp_path / "session", tmp_path / "socket", "agent-1", "s-1", RUNTIME / "launch.py")


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("train.py", "run.sh"):
        (folder / name).write_text("")
    return folder


@pytest.fixture
def launch(place, project):
    def build(*command, nnodes=1, node_rank=0, inherited=None, **workload):
        assignment = Assignment(
            session_id="s",
            generation=1,
            job_id="j",
            nnodes=nnodes,
            node_rank=node_rank,
            workload=Workload(**{"command": command, "working_dir": str(project), **workload}),
        )
        environment = {"PATH": "/usr/bin:/bin", **(inherited or {})}
        return build_launch(read_typed(assignment, "10.0.0.7:4711", place), environment)

    return build


def test_shell_script_is_started_as_typed_with_the_runtime_in_its_environment(launch, project):
    started = launch("bash", "run.sh", "--fast", inherited={"PYTHONPATH": "/own"})
    assert started.argv[1:] == ("run.sh", "--fast")
    assert Path(started.argv[0]).name == "bash"
    assert started.environment["PYTHONPATH"] == "/opt/runtime/injected:/own:/opt/runtime/api"
    assert started.environment["ADVISOR_RUNTIME"] == "/opt/runtime"
    assert started.environment["ADVISOR_STAY_S"] == "60"
    assert started.script == project / "run.sh"
    assert started.warnings == ()


def test_rendezvous_reaches_the_command_and_a_torchrun_inside_it(launch):
    started = launch(
        "bash", "run.sh", "--host=${master_addr}:${master_port}", "${node_rank}/${nodes}", "${HOME}",
        nnodes=2, node_rank=1,
        environment={"HEAD": "${master_addr}", "MASTER_ADDR": "elsewhere", "PYTHONPATH": "/jobs"},
        inherited={"RANK": "5", "WORLD_SIZE": "9", "PET_RDZV_BACKEND": "c10d"},
    )  # fmt: skip
    assert started.argv[2:] == ("--host=10.0.0.7:4711", "1/2", "${HOME}")
    variables = started.environment
    assert variables["HEAD"] == variables["MASTER_ADDR"] == variables["PET_MASTER_ADDR"] == "10.0.0.7"
    assert variables["MASTER_PORT"] == variables["PET_MASTER_PORT"] == "4711"
    assert variables["NNODES"] == variables["PET_NNODES"] == "2"
    assert variables["NODE_RANK"] == variables["PET_NODE_RANK"] == "1"
    assert variables["PYTHONPATH"] == "/opt/runtime/injected:/jobs:/opt/runtime/api"
    assert not {"RANK", "WORLD_SIZE", "PET_RDZV_BACKEND"} & set(variables)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export PYTHONPATH=$PWD/src\ntorchrun train.py", "PYTHONPATH="),
        ("exec env -i torchrun train.py", "env -i"),
        ("python -Iu train.py", "python -I"),
        ("export PYTHONPATH=src:$PYTHONPATH\npython -u train.py -I", None),
    ],
)
def test_script_that_loses_the_runtime_is_warned_of(launch, project, text, found):
    (project / "run.sh").write_text(text)
    warnings = launch("bash", "run.sh").warnings
    assert bool(warnings) is bool(found)
    if found:
        assert "run.sh" in warnings[0]
        assert found in warnings[0]


@pytest.mark.parametrize(("injection", "folders"), [("environment", "injected:api"), ("none", "api")])
def test_torchrun_joins_the_gang_without_the_runtime_in_front(launch, injection, folders):
    started = launch("torchrun", "--standalone", "train.py", "--lr", "1", injection=injection)
    assert "--master-port=4711" in started.argv
    assert started.argv[-3:] == ("train.py", "--lr", "1")
    assert not any("launch.py" in word for word in started.argv)
    assert started.environment["PYTHONPATH"] == ":".join(
        f"/opt/runtime/{name}" for name in folders.split(":")
    )
    assert "ADVISOR_STAY_S" not in started.environment


@pytest.mark.parametrize(
    ("command", "workload", "sentence"),
    [
        (("bash", "run.sh"), {"injection": "launcher"}, "starts the training processes itself"),
        (("no-such-launcher", "train.py"), {}, "no-such-launcher was not found"),
        (("torchrun", f"{'a' * 300}.py"), {}, "a{300}.py"),
        (("torchrun", "train.py"), {"working_dir": "/" + "a" * 300}, "a{300}"),
    ],
)
def test_launch_is_refused_with_a_remedy(launch, command, workload, sentence):
    with pytest.raises(Unlaunchable, match=sentence):
        launch(*command, **workload)
