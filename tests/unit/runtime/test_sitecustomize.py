"""The sitecustomize in front of every Python that a command starts: it is not noticed, whatever fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.exporters.launch import pack_runtime

RUNTIME = Path(__file__).parents[3] / "agent" / "runtime"


def list_pythons() -> list[str]:
    """This Python, and every other one from 3.9 that the machine has."""
    names = [f"python3.{minor}" for minor in range(9, 15)]
    versions = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    others = [shutil.which(name) for name in names] + [str(path) for path in versions]
    code = "import sys; print('%d.%d' % sys.version_info[:2] if sys.version_info >= (3, 9) else '')"
    pythons = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for python in filter(None, others):
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip():
            pythons.setdefault(found.stdout.strip(), python)
    return list(pythons.values())


def run(python: str, code: str, *path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    return subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(params=["folder", "archive"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the runtime's folder as it is installed, and as an export carries it."""
    if request.param == "folder":
        return RUNTIME
    archive = tmp_path_factory.mktemp("export") / "runtime.pyz"
    archive.write_bytes(pack_runtime())
    return archive / "fleet_advisor_runtime"


@pytest.mark.parametrize("python", list_pythons())
def test_next_sitecustomize_runs_and_the_process_is_as_before(
    python: str, runtime: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("VALUE = 'the user\\'s own'")
    (tmp_path / "torch.py").write_text(
        "import sys\nassert 'fleet_advisor_runtime.inject.joining' in sys.modules"
    )
    code = "import os, sitecustomize, torch; print(sitecustomize.VALUE, os.environ['WANDB_MODE'])"
    found = run(python, code, runtime / "injected", tmp_path, ADVISOR_TUNING="1")
    # This torch has no `distributed`: the runtime says so in one line, and the import goes on.
    assert (found.returncode, found.stdout) == (0, "the user's own disabled\n")
    assert len(found.stderr.splitlines()) == 1
    assert "fleet advisor: this process is not measured: ModuleNotFoundError" in found.stderr


def test_nothing_happens_outside_of_a_trial_and_where_no_other_sitecustomize_is(tmp_path: Path) -> None:
    code = "import sys; print('fleet_advisor_runtime' in sys.modules, 'sitecustomize' in sys.modules)"
    # Debian's own Python brings one.
    _, others = run(sys.executable, code).stdout.split()
    found = run(sys.executable, code, RUNTIME / "injected")
    assert (found.stdout, found.stderr) == (f"False {others}\n", "")
    found = run(sys.executable, code, RUNTIME / "injected", ADVISOR_TUNING="1")
    assert (found.stdout, found.stderr) == (f"True {others}\n", "")


def test_error_of_the_next_sitecustomize_is_told_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('mine')")
    alone = run(sys.executable, "print(1)", tmp_path)
    behind = run(sys.executable, "print(1)", RUNTIME / "injected", tmp_path)
    assert (behind.stdout, behind.stderr) == (alone.stdout, alone.stderr)
    assert "mine" in behind.stderr


@pytest.mark.parametrize("fault", ["missing", "broken"])
def test_process_goes_on_when_the_runtime_is_unusable(fault: str, tmp_path: Path) -> None:
    shutil.copytree(RUNTIME / "injected", tmp_path / "injected")
    if fault == "broken":
        (tmp_path / "launch.py").write_text("raise RuntimeError('broken')")
    found = run(sys.executable, "print(1)", tmp_path / "injected", ADVISOR_TUNING="1")
    assert (found.returncode, found.stdout) == (0, "1\n")
    assert found.stderr.startswith("fleet advisor: this process is not measured")
    assert len(found.stderr.splitlines()) == 1
