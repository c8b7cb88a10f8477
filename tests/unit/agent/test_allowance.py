"""What an operator's configuration lets a workload do, and how it refuses the rest."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from advisor.protocol.workload import Workload
from agent.errors import BadConfiguration
from agent.operator.allowance import TRAINING_LAUNCHERS, Allowance, find_refusal
from agent.operator.config import describe_error, read_config


def _refuse(command, tmp_path, variables=None, **allowed):
    workload = Workload(command=tuple(command), working_dir=str(tmp_path), environment=variables or {})
    return find_refusal(Allowance(**allowed), workload, tmp_path, None)


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
    workload = Workload(command=("torchrun", "train.py"), working_dir=str(root))
    allowance = Allowance(roots=(root,))
    assert find_refusal(allowance, workload, root, root / "fine.py") == ""
    assert "working_dir" in find_refusal(allowance, workload, elsewhere, None)
    assert "working_dir" in find_refusal(allowance, workload, root / ".." / "elsewhere", None)
    assert "script" in find_refusal(allowance, workload, root, elsewhere / "evil.py")
    assert "script" in find_refusal(allowance, workload, root, root / "link.py")


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
        f'server = "http://head:8765"\nrun_as = "trainer"\nisolate = false\n[allow]\nroots = ["{tmp_path}"]\n'
    )
    assert read_config(path).list_options() == {
        "server": "http://head:8765",
        "run_as": "trainer",
        "isolate": False,
        "allow_root": (tmp_path,),
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


def test_root_that_does_not_exist_is_refused_at_the_start():
    with pytest.raises(ValidationError) as failure:
        Allowance(roots=(Path("/no/such/place"),))
    assert "/no/such/place" in describe_error(failure.value)
