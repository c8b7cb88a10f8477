"""Whom the guard kills, and whom it lets finish first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.guard.processes import SESSION_MARKER, count_running, kill_until_none, list_marked

HOLDER = """
import time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=100)
print(memory.name, flush=True)
time.sleep(600)
"""
STUBBORN = "import time\n# multiprocessing.resource_tracker\nprint(flush=True)\ntime.sleep(600)"


def start(session: str, program: str) -> "subprocess.Popen[str]":
    """A process of a session, and what it says first."""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, SESSION_MARKER: session},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_shared_memory_of_those_who_are_killed_is_deleted(tmp_path: Path) -> None:
    session = str(tmp_path)
    with start(session, HOLDER) as holder:
        assert holder.stdout is not None
        memory = Path("/dev/shm") / holder.stdout.readline().strip()
        assert memory.is_file()
        assert len(list_marked(**{SESSION_MARKER: session})) == 2
        assert kill_until_none(lambda: list_marked(**{SESSION_MARKER: session}), 60.0) == []
    assert not memory.exists()


def test_who_only_looks_as_if_it_cleaned_up_is_killed_too(tmp_path: Path) -> None:
    session = str(tmp_path)
    with start(session, STUBBORN) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        assert kill_until_none(lambda: list_marked(**{SESSION_MARKER: session}), 60.0) == []


def test_threads_that_run_are_counted_and_those_that_wait_are_not() -> None:
    busy = "import threading\nprint(flush=True)\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()"
    process = start("counting", busy)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        while (
            count_running(process.pid) != 1
        ):  # its thread begins in a moment, and the main one goes to sleep
            pass
        os.kill(process.pid, signal.SIGSTOP)
        while count_running(process.pid):
            pass
    finally:
        process.kill()
        process.wait()
