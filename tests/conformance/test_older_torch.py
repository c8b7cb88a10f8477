"""The runtime in the oldest torch that it promises to serve, 2.1, and the oldest Python there is for it, 3.9.

That torch's only wheels on PyPI carry CUDA: a download of 2.6 GB that fills 5 GB, made once.
"""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import ENVIRONMENTS, HERE, provide_environment

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1200)]

NEEDED_BYTES = 12 * 2**30
HOT = (
    {"fuse_all_reduce_ops": False},
    {"fuse_grad_size_in_MB": 0.02},
    {"fuse_grad_size_in_MB": 0.02, "last_comm_group_size_MB": 0.01},
    {"fuse_grad_size_in_MB": 0.02, "nccl_comm_num": 2},
    {"fp16_allreduce": True},
    {"localsgd": True, "localsgd_k_steps": 2},
    {"num_threads": 2},
)


@pytest.fixture(scope="module")
def old_python() -> str:
    """The Python of a virtual environment with torch 2.1.2."""
    environment = ENVIRONMENTS / "torch-2.1.2"
    if not environment.exists() and shutil.disk_usage(HERE).free < NEEDED_BYTES:
        pytest.skip(
            f"torch 2.1.2 with its CUDA libraries needs {NEEDED_BYTES / 2**30:.0f} GiB of free disk here"
        )
    return str(
        provide_environment("torch-2.1.2", HERE / "requirements-torch-2.1.2.txt", find_oldest_python())
    )


def find_oldest_python() -> str:
    """The oldest Python of this machine that torch 2.1 has wheels for and the runtime promises to serve."""
    for version in ("3.9", "3.10", "3.11"):
        candidates = [
            shutil.which(f"python{version}"),
            *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
        ]
        for python in filter(None, candidates):
            # A version manager's shim on PATH may stand for a Python that is not chosen.
            if shutil.which(str(python)) and ".pyenv/shims" not in str(python):
                return str(python)
    if sys.version_info >= (3, 12):
        pytest.skip("torch 2.1.2 has no wheel for this machine's Pythons: install Python 3.9, 3.10 or 3.11")
    return sys.executable


@pytest.fixture(scope="module")
def fake_agent() -> ModuleType:
    """The tiny agent of the runtime's own tests."""
    spec = importlib.util.spec_from_file_location(
        "old_torch_fake_agent", HERE.parent / "distributed" / "runtime" / "fake_agent.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_hot_knobs_are_consumed(old_python: str, fake_agent: ModuleType, tmp_path: Path) -> None:
    plans = [fake_agent.measure(str(number), change) for number, change in enumerate(HOT)]
    session = fake_agent.launch(tmp_path, ["plain.py", "--steps", "3000"], plans, python=old_python)
    facts = session.hello["facts"]
    assert facts["torch_version"].startswith("2.1.2")
    assert tuple(map(int, facts["python_version"].split(".")[:2])) <= (3, 11)
    for number, change in enumerate(HOT):
        result = session.result(str(number))
        assert set(result["consumed"]) == set(change), result["not_consumed"]
        assert result["steps"] == 4
    assert session.code == 0, session.log


def test_losses_are_equal_to_those_of_the_bare_script(
    old_python: str, fake_agent: ModuleType, tmp_path: Path
) -> None:
    bare, switched = tmp_path / "bare", tmp_path / "switched"
    for folder in (bare, switched):
        folder.mkdir()
    steps = ["plain.py", "--steps", "40", "--digests"]
    assert fake_agent.launch(bare, steps, patched=False, python=old_python).code == 0
    plans = [
        fake_agent.measure("buckets", {"fuse_grad_size_in_MB": 0.02}),
        fake_agent.measure("base", max_steps=200),
    ]
    session = fake_agent.launch(switched, steps, plans, python=old_python)
    assert session.result("buckets")["consumed"], session.log
    seen = [(folder / "run.losses.0").read_text().splitlines() for folder in (bare, switched)]
    assert len(seen[1]) > 15
    assert seen[0][: len(seen[1])] == seen[1]


def test_shell_script_is_measured(old_python: str, fake_agent: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("torchrun --standalone --nproc-per-node 2 plain.py --steps 3000\n")
    plans = [fake_agent.measure("base"), fake_agent.measure("buckets", {"fuse_grad_size_in_MB": 0.02})]
    session = fake_agent.launch(
        tmp_path, ["bash", str(script)], plans, injection="command", python=old_python
    )
    assert session.hello["facts"]["torch_version"].startswith("2.1.2")
    assert set(session.result("buckets")["consumed"]) == {"fuse_grad_size_in_MB"}
    assert "not measured" not in session.log


def test_compiled_script_is_told_why_its_steps_are_not_seen(
    old_python: str, fake_agent: ModuleType, tmp_path: Path
) -> None:
    """This torch's compiler removes the hooks of optimizers' steps."""
    script = ["plain.py", "--steps", "40", "--compile", "inside"]
    session = fake_agent.launch(tmp_path, script, [fake_agent.measure("a")], python=old_python)
    trouble = session.find("trouble")
    assert trouble["code"] == "compiled_steps", session.log
    assert "torch 2.1.2" in trouble["sentence"]
