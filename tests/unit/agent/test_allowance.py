"""What an operator's configuration lets a workload do, and how it refuses the rest."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.workload import Workload
from agent.backends import read_assignment
from agent.backends.launch import SessionPlace
from agent.errors import BadConfiguration
from agent.operator.config import describe_error, read_config
from agent.trust.allowance import TRAINING_LAUNCHERS, Allowance, find_refusal


def _refuse(command, working_dir, variables=None, **allowed):
    return find_refusal(Allowance(**allowed), Command.read(command), working_dir, variables or {})


@pytest.mark.parametrize(
    ("command", "launchers", "is_allowed"),
    [
        (["torchrun", "train.py"], TRAINING_LAUNCHERS, True),
        (["python3.11", "-m", "torch.distributed.run", "train.py"], TRAINING_LAUNCHERS, True),
        (["accelerate", "launch", "train.py"], TRAINING_LAUNCHERS, True),
        (["accelerate", "config"], TRAINING_LAUNCHERS, False),
        (["bash", "run.sh"], TRAINING_LAUNCHERS, False),
        (["bash", "run.sh"], ("*",), True),
        (["bash", "run.sh"], ("bash run.sh",), True),
        (["bash", "other.sh"], ("bash run.sh",), False),
        (["python", "train.py"], ("python -m torch.distributed.run",), False),
        (["python"], ("python -m torch.distributed.run",), False),
        (["torchrun", "train.py"], (), False),
        (["/opt/venv/bin/torchrun", "train.py"], ("torchrun",), True),
        (["/opt/venv/bin/torchrun", "train.py"], ("/opt/*/torchrun",), True),
        (["torchrun", "train.py"], ("/opt/venv/bin/torchrun",), False),
    ],
)
def test_launchers_are_matched_word_by_word(command, launchers, is_allowed, tmp_path):
    refusal = _refuse(command, tmp_path, launchers=launchers)
    assert (refusal == "") == is_allowed
    if not is_allowed:
        assert "allow.launchers" in refusal
        assert command[0] in refusal


def test_launcher_by_path_must_lie_in_the_roots(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)  # as a virtual environment has it
    inside = _refuse(
        [str(tmp_path / "bin" / "python"), "x.py"], tmp_path, launchers=("python",), roots=(tmp_path,)
    )
    outside = _refuse(["/opt/evil/python", "x.py"], tmp_path, launchers=("python",), roots=(tmp_path,))
    assert inside == ""
    assert "full path" in outside


def test_nothing_outside_of_the_roots_is_started(tmp_path):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (elsewhere / "evil.py").write_text("")
    (root / "link.py").symlink_to(elsewhere / "evil.py")
    (root / "fine.py").write_text("")
    (root / "linked").symlink_to(elsewhere)
    (tmp_path / "way_in").symlink_to(root)
    for script in ("fine.py", str(root / "fine.py"), "./x/../fine.py", str(tmp_path / "way_in" / "fine.py")):
        assert _refuse(["torchrun", script], root, roots=(root,)) == "", script
    for working_dir in (elsewhere, root / ".." / "elsewhere", root / "linked", tmp_path):
        assert "working_dir" in _refuse(["torchrun", "evil.py"], working_dir, roots=(root,))
    for script in (
        str(elsewhere / "evil.py"),
        "../elsewhere/evil.py",
        "link.py",
        "linked/evil.py",
        "/dev/stdin",
    ):
        for launcher in (
            ["torchrun", "--nproc-per-node=2"],
            ["python", "-u"],
            ["python3", "-m", "torch.distributed.run"],
        ):
            assert "the job's script is" in _refuse([*launcher, script], root, roots=(root,)), script


UNSEEN = [
    ["torchrun", "--no-python", "sh", "-c", "evil", "fine.py"],
    ["torchrun", "--no_python", "sh", "-c", "evil"],
    ["accelerate", "launch", "--no_python", "sh", "fine.py"],
    ["accelerate", "launch", "fine.py"],
    ["python", "-m", "accelerate.commands.launch", "fine.py"],
    ["python", "-m", "torch.distributed.launch", "fine.py"],
    ["sh", "-c", "evil", "fine.py"],
    ["bash", "fine.py"],
    ["python", "-c", "evil", "fine.py"],
    ["python", "-Xpycache_prefix=/tmp/evil", "fine.py"],
    ["python", "-uX", "pycache_prefix=/tmp/evil", "fine.py"],
    ["python", "-W", "ignore::evil.Category", "fine.py"],
    ["fine.py"],
]
MODULES = [
    ["torchrun", "-m", "timeit"],
    ["torchrun", "--nproc-per-node", "2", "--module", "timeit", "evil"],
    ["torchrun", "--mod", "timeit"],
    ["python", "-m", "timeit"],
    ["python", "-um", "timeit"],
    ["python", "-mtimeit"],
    ["python3", "-m", "torch.distributed.run", "-m", "timeit"],
]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "fine.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("command", UNSEEN, ids=" ".join)
def test_code_that_nobody_can_place_is_refused_within_roots(command, root):
    refusal = _refuse(command, root, roots=(root,))
    assert "allow.roots" in refusal
    assert "allow.commands (--allow-command)" in refusal
    assert _refuse(command, root, roots=(root,), commands=(" ".join(command[:3]),)) == ""
    assert _refuse(command, root, roots=(Path("/"),)) == "", "every place is below /"


@pytest.mark.parametrize("command", MODULES, ids=" ".join)
def test_modules_are_refused_within_roots_but_for_those_that_are_named(command, root):
    refusal = _refuse(command, root, roots=(root,))
    assert "the module timeit" in refusal
    assert "allow.modules (--allow-module)" in refusal
    assert _refuse(command, root, roots=(root,), modules=("json", "time*")) == ""
    assert _refuse(command, root, roots=(root,), modules=("json",)) != ""
    assert _refuse(command, root, roots=(Path("/"),)) == ""


def test_launcher_by_path_is_refused_outside_of_the_roots_whatever_the_name(root):
    assert "full path" in _refuse(["/opt/evil/python", "fine.py"], root, launchers=("*",), roots=(root,))


def test_named_command_needs_no_launcher_beside_it(root):
    allowed = {"roots": (root,), "launchers": ("torchrun",), "commands": ("accelerate launch",)}
    assert _refuse(["accelerate", "launch", "fine.py"], root, **allowed) == ""
    assert "allow.launchers" in _refuse(["accelerate", "config"], root, **allowed)


def test_variables_lead_out_of_no_root_unless_they_are_named(root):
    command = ["python", "fine.py"]
    for name in ("PYTHONPATH", "LD_PRELOAD", "PATH", "NCCL_NET_PLUGIN", "PET_NO_PYTHON"):
        assert name in _refuse(command, root, {name: "/tmp/evil"}, roots=(root,))
        assert _refuse(command, root, {name: "/tmp/evil"}, roots=(Path("/"),)) == ""
    assert _refuse(command, root, {"OMP_NUM_THREADS": "2"}, roots=(root,), environment=("OMP_*",)) == ""


def test_placeholders_are_filled_before_the_script_is_looked_at(tmp_path):
    """The server chooses what stands in their places."""
    (tmp_path / "fine.py").write_text("")
    workload = Workload(
        kind="command", command=("python3", "${num_threads}.py", "fine.py"), working_dir=str(tmp_path)
    )
    assignment = Assignment(
        session_id="s", generation=1, job_id="j", node_rank=0, nnodes=1, workload=workload,
        cold={"num_threads": "/tmp/evil"},
    )  # fmt: skip
    place = SessionPlace(tmp_path, tmp_path / "s", "a", "s-1", tmp_path / "runtime.py")
    command = read_assignment(assignment, "127.0.0.1:1", place).command
    refusal = find_refusal(Allowance(roots=(tmp_path,)), command, tmp_path, {})
    assert "/tmp/evil.py" in refusal


def test_variables_outside_of_the_allow_list_are_named(tmp_path):
    allowed = ("NCCL_*", "OMP_NUM_THREADS")
    assert _refuse(["torchrun"], tmp_path, {"NCCL_DEBUG": "INFO"}, environment=allowed) == ""
    refusal = _refuse(["torchrun"], tmp_path, {"LD_PRELOAD": "x.so"}, environment=allowed)
    assert "LD_PRELOAD" in refusal
    assert "allow.environment" in refusal
    assert "none" in _refuse(["torchrun"], tmp_path, {"A": "1"}, environment=())


def test_configuration_becomes_options(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text(
        f'server = "http://head:8765"\nrun_as = "trainer"\nisolate = false\npool = "gpu"\n'
        f'labels = {{rack = "7"}}\n[allow]\nroots = ["{tmp_path}"]\n'
        'modules = ["my.train"]\ncommands = ["bash run.sh"]\n'
    )
    assert read_config(path).list_options() == {
        "server": "http://head:8765",
        "run_as": "trainer",
        "isolate": False,
        "pool": "gpu",
        "label": ["rack=7"],
        "allow_root": (tmp_path,),
        "allow_module": ("my.train",),
        "allow_command": ("bash run.sh",),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server = ", "Invalid value"),
        ("runas = 'x'", "runas is not one of its keys"),
        ("[allow]\nroot = []", "allow.root is not one of its keys"),
        ("hide = 7", "hide: "),
        (None, "cannot be read"),
    ],
)
def test_configuration_that_cannot_be_used_names_the_key(text, words, tmp_path):
    path = tmp_path / "agent.toml"
    if text is not None:
        path.write_text(text.replace("\\\n", "\n"))
    with pytest.raises(BadConfiguration, match=words):
        read_config(path)


def test_roots_must_be_said():
    with pytest.raises(ValidationError) as failure:
        Allowance(roots=())
    assert "--allow-root / lets every submitter start any code" in describe_error(failure.value)


def test_root_that_does_not_exist_is_refused_at_the_start():
    with pytest.raises(ValidationError) as failure:
        Allowance(roots=(Path("/no/such/place"),))
    assert "/no/such/place" in describe_error(failure.value)


@pytest.mark.parametrize(
    ("command", "protect", "field"),
    [
        ("torchrun --log-dir /anywhere --redirects 3 fine.py", (), "option --log-dir is /anywhere"),
        ("torchrun --log_d=../out fine.py", (), "option --log_d is"),
        ("torchrun --log-dir link/x fine.py", (), "option --log-dir is"),
        ("accelerate launch --log_dir /anywhere fine.py", (), "option --log_dir is /anywhere"),
        ("torchrun fine.py", ("/anywhere",), "protect: /anywhere is /anywhere"),
        ("torchrun fine.py", ("runs", "../out"), "protect: ../out is"),
    ],
)
def test_what_is_written_and_protected_lies_in_the_roots(root, command, protect, field):
    (root / "link").symlink_to("/etc")
    allowed = Allowance(roots=(root,), commands=("accelerate launch",))
    refusal = find_refusal(allowed, Command.read(command.split()), root, {}, protect)
    assert field in refusal
    assert "--allow-root" in refusal
    assert find_refusal(Allowance(), Command.read(command.split()), root, {}, protect) == ""
    inside = command.replace("/anywhere", "logs").replace("../out", "logs").replace("link/x", "logs")
    assert find_refusal(allowed, Command.read(inside.split()), root, {}, ("runs",)) == ""
