"""Real processes for the tests of the command line: `advisor` as a user starts it, and what it leaves behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from advisor.client import Client
from advisor.local.record import running_server

ROOT = Path(__file__).parents[3]
PATIENCE_S = 90
MARK = "PROCESSES_OF_TEST"
"""A variable that everything started by a command inherits: the user's environment is the training's."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data directory of this test's server; its path marks every process that belongs to it."""
    return tmp_path / "data"


def environment_on(data_dir: Path) -> dict[str, str]:
    """Return a user's environment without any advisor in it but that of `data_dir`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    ours = {"ADVISOR_DATA_DIR": str(data_dir), "PYTHONPATH": str(ROOT), "NO_COLOR": "1", MARK: str(data_dir)}
    return kept | ours


@pytest.fixture
def environment(data_dir: Path) -> Iterator[dict[str, str]]:
    """A user's environment. What a failed test left running is killed."""
    yield environment_on(data_dir)
    for process in processes_of(data_dir):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def advisor(*words: str, environment: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "advisor", *words],
        env=dict(environment),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def start_advisor(*words: str, environment: Mapping[str, str], cwd: Path) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a shell does."""
    return subprocess.Popen(
        [sys.executable, "-m", "advisor", *words],
        env=dict(environment),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_server(data_dir: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a server on a free port; returns once it is ready."""
    data_dir.mkdir()
    process = start_advisor("serve", "--port", "0", environment=environment, cwd=data_dir)

    def is_ready() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        record = running_server(data_dir)
        if record is None:
            return False
        with Client(record.url, None) as client:
            return client.is_ready()

    wait_until(is_ready, "the server is ready")
    return process


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Poll until it holds; fails after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.1)


def ranks_of(data_dir: Path) -> list[psutil.Process]:
    """Return the training processes among them."""
    return [process for process in processes_of(data_dir) if "RANK" in _environment_of(process)]


def _environment_of(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}  # it has gone


def processes_of(data_dir: Path) -> list[psutil.Process]:
    """Return every process that was started with this test's environment, however indirectly."""
    found = []
    for process in psutil.process_iter():
        try:
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if is_alive and _environment_of(process).get(MARK) == str(data_dir):
                found.append(process)
        except psutil.Error:
            continue
    return found
