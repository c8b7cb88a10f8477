"""What the tests of the agent share: a small server, agents that serve it, and scripts for them to run."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.protocol.training.workload import Injection, Workload

from .fake_server import FakeServer
from .starter import AgentStarter, list_session_processes, wait_for, write_fake_runtime

FACTS = {
    "backend": "gloo", "device": "cpu", "world_size": 2, "local_world_size": 2, "gradient_bytes": 4000,
    "parameter_tensors": 4, "layers": 2, "batch_size_per_rank": 8,
}  # fmt: skip


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(name="list_session_processes")
def _list_session_processes() -> Callable[[str], list[int]]:
    return list_session_processes


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def session_id(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Unlike any other test's, also of a run that goes on beside this one."""
    return f"t{os.getpid()}{abs(hash(request.node.nodeid)) % 10**8}"


@pytest.fixture
def fake_runtime(tmp_path: Path) -> Path:
    return write_fake_runtime(tmp_path / "fake_runtime.py")


@pytest.fixture
def agents(tmp_path: Path, server: FakeServer, fake_runtime: Path) -> Iterator[AgentStarter]:
    starter = AgentStarter(tmp_path / "agents", server.url, fake_runtime)
    yield starter
    starter.stop()


@pytest.fixture(autouse=True)
def _check_leftovers(session_id: str, agents: AgentStarter) -> Iterator[None]:
    """Whatever a test does: no process of its session stays."""
    yield
    agents.stop()
    agents.running.clear()
    assert list_session_processes(session_id) == []


@pytest.fixture
def make_workload(tmp_path: Path) -> Callable[..., Workload]:
    """Write a script into a directory of its own, and return the workload that runs it as a plain process."""

    def make(
        script: str, *arguments: str, launcher: tuple[str, ...] = (sys.executable,), **more: Any
    ) -> Workload:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(script)
        if "python" in launcher[-1]:
            more.setdefault("injection", Injection.LAUNCHER)  # where the fake runtime is
        return Workload(command=(*launcher, "train.py", *arguments), working_dir=str(folder), **more)

    return make


@pytest.fixture
def facts() -> dict[str, Any]:
    return FACTS
