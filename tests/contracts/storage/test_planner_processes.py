"""Planner processes: they decide what the server itself would, may die at any time, and never outlive it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from advisor.errors import JobNotFound, Unavailable
from advisor.protocol.logs import LogFormat
from advisor.services.planning import processes
from advisor.services.planning.decided import Choice, VersionedDecision
from advisor.services.planning.processes import PlannerProcesses, Question, Setting
from advisor.tuning.asked import Tuning
from tests.unit.services.world import World

WAIT_S = 60.0


@pytest.fixture
def real(database_url: str) -> Iterator[World]:
    world = World(database_url, Tuning())
    yield world
    world.database.close()


@pytest.fixture
def planners(database_url: str) -> Iterator[PlannerProcesses]:
    found = PlannerProcesses(Setting(database_url, 60.0, LogFormat.TEXT), kept=1)
    yield found
    found.close()


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        # Other tests' children come and go.
        with suppress(psutil.Error):
            if any("planning.processes" in word for word in child.cmdline()):
                found.append(child)
    return found


def await_end(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.05)


def test_process_decides_as_the_server_does_and_is_replaced_when_it_dies_or_hangs(
    real: World, planners: PlannerProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = real.submit()
    asked = Question(job.id, real.now)
    here = real.think(job.id)
    there = planners.look(asked)
    assert isinstance(there, VersionedDecision)
    assert there.decision == here.decision
    assert (there.version, there.sessions) == (here.version, here.sessions)
    (idle,) = children()
    idle.kill()
    again = planners.look(asked)
    assert isinstance(again, VersionedDecision)
    assert again.decision == here.decision
    (busy,) = children()
    assert busy.pid != idle.pid
    with pytest.raises(JobNotFound, match="no job nothing"):
        planners.look(Question("nothing", real.now))
    assert children() == [busy], "an error is an answer"
    busy.suspend()
    # Long enough for the one that takes its place to load what it thinks with, on a busy machine.
    monkeypatch.setattr(processes, "_SILENT_S", 30.0)
    assert isinstance(planners.look(asked), VersionedDecision)
    assert busy not in children()


def test_process_that_is_killed_while_it_thinks_loses_nothing_and_stopping_waits_for_none(
    real: World, planners: PlannerProcesses
) -> None:
    asked = Question(real.submit().id, real.now)
    planners.look(asked)
    found: list[VersionedDecision | Choice | Exception] = []

    def ask() -> threading.Thread:
        def run() -> None:
            try:
                found.append(planners.look(asked))
            except Unavailable as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    (planner,) = children()
    planner.suspend()
    thread = ask()
    time.sleep(0.1)
    planner.kill()
    thread.join(WAIT_S)
    assert isinstance(found.pop(), VersionedDecision)
    (planner,) = children()
    planner.suspend()
    thread = ask()
    time.sleep(0.1)
    planners.close()
    thread.join(WAIT_S)
    assert isinstance(found.pop(), Unavailable)
    await_end(planner.pid)


def test_process_ends_with_the_server_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from advisor.protocol.logs import LogFormat\n"
        "from advisor.services.planning.processes import PlannerProcesses, Setting\n"
        f"setting = Setting('sqlite:///{tmp_path}/none.db', 1.0, LogFormat.TEXT)\n"
        "planner = PlannerProcesses(setting, 1)._take()\n"
        "print(planner._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(server.pid, signal.SIGKILL)
        server.wait(WAIT_S)
        await_end(pid)
