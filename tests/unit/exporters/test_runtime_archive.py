"""The runtime's archive: the same bytes for one version, and a command that starts as it would without it."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest

from advisor import __version__
from advisor.exporters import export
from advisor.exporters.launch import pack_runtime
from advisor.protocol.training.workload import WorkloadKind

TELL = """\
import json, os, sys
told = {name: os.environ.get(name) for name in ("ADVISOR_RUN", "ADVISOR_COLD", "PYTHONPATH", "OMP_NUM_THREADS")}
import torch
joined = [name for name in sys.modules if name.startswith("fleet_advisor_runtime.")]
if __name__ == "__main__":
    print(json.dumps([sys.argv, sys.path[0], __name__, sys.flags.optimize, told, joined]))
    raise SystemExit(7)
"""
CHANGES = {"fuse_grad_size_in_MB": 50.0, "NCCL_SOCKET_NTHREADS": 4}


@pytest.fixture
def archive(advise, tmp_path: Path) -> Path:
    """Give an export in a folder of its own, beside a script that tells how it was started."""
    folder = tmp_path / "export"
    (tmp_path / "pkg").mkdir()
    folder.mkdir()
    for place in (tmp_path, tmp_path / "pkg"):
        (place / "tell.py").write_text(TELL)
        (place / "torch.py").touch()
    for name in ("json", "runtime"):
        file = export(*advise(CHANGES), name)
        (folder / file.filename).write_bytes(file.data)
    return folder / "fleet_advisor_runtime.pyz"


def run(folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**kept, **variables},
    )  # fmt: skip


def test_the_archive_is_the_same_for_one_version_and_says_which(advise) -> None:
    first = pack_runtime()
    pack_runtime.cache_clear()
    assert pack_runtime() == first == export(*advise({}), "runtime").data
    assert len(first) < 352 * 2**10
    with zipfile.ZipFile(BytesIO(first)) as packed:
        assert packed.read("VERSION").decode() == f"{__version__}\n"
        assert b"Apache License" in packed.read("LICENSE")
        names = packed.namelist()
    assert {"fleet_advisor_runtime/runtime.py", "fleet_advisor_runtime/nccl_tuner/tuner.c"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]


@pytest.mark.parametrize(
    "words", [("tell.py", "--a", "b c"), ("pkg/tell.py",), ("-m", "pkg.tell", "-m", "x"), ("-m", "tell")]
)
def test_the_script_sees_what_it_would_see_without_the_archive(words, archive: Path, tmp_path: Path) -> None:
    plain, under = run(tmp_path, *words), run(tmp_path, archive, *words)
    assert plain.returncode == under.returncode == 7, under.stderr
    assert json.loads(under.stdout)[:3] == json.loads(plain.stdout)[:3]
    assert "at least +15.9 %" in under.stderr


def test_the_interpreter_keeps_its_options_and_the_ranks_hear_of_the_strategy(
    archive: Path, tmp_path: Path
) -> None:
    done = run(tmp_path, "-O", archive, "tell.py", PYTHONPATH=str(tmp_path / "mine"))
    *_, optimize, told, joined = json.loads(done.stdout)
    assert optimize == 1
    assert json.loads(told["ADVISOR_RUN"])["changes"] == CHANGES
    assert json.loads(told["ADVISOR_COLD"]) == {"NCCL_SOCKET_NTHREADS": 4}
    places = told["PYTHONPATH"].split(os.pathsep)
    assert places[1] == str(tmp_path / "mine")
    assert all(place.startswith(str(archive)) for place in (places[0], places[2]))
    assert "fleet_advisor_runtime.inject.joining" in joined, "loaded from the archive as Python starts"


def test_a_launch_command_is_started_as_typed(archive: Path, tmp_path: Path) -> None:
    command = (
        "--strategy",
        archive.with_name("strategy.json"),
        "--",
        "bash",
        "-c",
        'echo "$NCCL_SOCKET_NTHREADS"',
    )
    assert run(tmp_path, archive, *command).stdout == "4\n"
    trial = run(tmp_path, archive, "bash", "-c", 'echo "$ADVISOR_RUN"', ADVISOR_CONTROL="/somewhere")
    assert (trial.stdout, "this is a trial" in trial.stderr) == ("\n", True)
    script = run(tmp_path, archive, "tell.py", "--a", ADVISOR_CONTROL="/somewhere")
    plain = run(tmp_path, "tell.py", "--a")
    assert json.loads(script.stdout)[:3] == json.loads(plain.stdout)[:3], "in the process of the trial"
    assert run(tmp_path, archive, "true", RANK="1").stderr == "", "one rank says it"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "usage: fleet_advisor_runtime.pyz [--strategy strategy.json]"),
        (("--strategy", "none.json", "true"), 3, "none.json cannot be read as a strategy file"),
        (("--strategy=other.json", "true"), 3, "is no strategy file of this version"),
        (("--strategy=command.json", "true"), 3, "is for a command workload"),
        (("no-such-program",), 3, "no-such-program cannot be started: No such file or directory. Activate"),
    ],
)
def test_what_cannot_be_used_is_said(
    words, code: int, said: str, archive: Path, advise, tmp_path: Path
) -> None:
    (tmp_path / "other.json").write_text("{}")
    command = advise({"num_threads": 2}, kind=WorkloadKind.COMMAND, knobs={"num_threads": 1})
    (tmp_path / "command.json").write_text(export(*command, "json").content)
    done = run(tmp_path, archive, *words)
    assert done.returncode == code
    assert said in done.stderr


def test_launcher_of_an_environment_that_is_not_activated_is_found(archive: Path, tmp_path: Path) -> None:
    scripts = tmp_path / "environment" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "python3").symlink_to(sys.executable)
    (scripts / "launch").write_text("#!/bin/sh\necho launched\n")
    (scripts / "launch").chmod(0o755)
    done = subprocess.run(
        [scripts / "python3", archive, "launch"], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == "launched\n", done.stderr


def test_a_kept_baseline_starts_the_command_as_it_is(advise, archive: Path, tmp_path: Path) -> None:
    archive.with_name("strategy.json").write_text(export(*advise({}), "json").content)
    done = run(tmp_path, archive, "tell.py")
    told: Mapping[str, str | None] = json.loads(done.stdout)[4]
    assert (told["ADVISOR_RUN"], told["PYTHONPATH"]) == (None, None)
    assert "advises no change: your command starts as it is." in done.stderr
