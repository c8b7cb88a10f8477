"""The whole server over HTTP, without a network: the application, its clients, and agents that obey."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

from advisor.app import create_app
from advisor.client import Client
from advisor.settings import Settings
from tests.integration.server.served import Served
from tests.integration.server.visitors import Visitors
from tests.unit.services.scripted_tuning import ScriptedTuning


@pytest.fixture
def start(tmp_path: Path, migrated_file: Path) -> Iterator[Callable[..., Served]]:
    """Starts a server on this test's data directory; starting again is a restart on the same database."""
    shutil.copy(migrated_file, tmp_path / "advisor.db")
    started: list[Served] = []

    def run(**settings: object) -> Served:
        started.append(Served(tmp_path, **settings))
        return started[-1]

    yield run
    for served in started:
        served.stop()


@pytest.fixture
def server(start: Callable[..., Served]) -> Served:
    """A running server."""
    return start()


@pytest.fixture
def visitors(start: Callable[..., Served]) -> Visitors:
    """Visitors of every kind, on a server whose sessions outlast the test."""
    return Visitors(start(poll_s=0.02, stream_s=0.05, lease_s=3600.0, tick_s=3600.0))


@pytest.fixture
def served(tmp_path: Path, migrated_file: Path) -> Iterator[tuple[str, str]]:
    """Address and administrator's token of a server on a socket."""
    (tmp_path / "advisor.db").write_bytes(migrated_file.read_bytes())
    settings = Settings(data_dir=tmp_path, poll_s=0.2, look_s=0.02, tick_s=0.05, stream_s=0.5)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(settings, tuning=ScriptedTuning()), ws="none", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with Client(url, None) as client:
        while not client.is_ready():
            assert thread.is_alive()
    yield url, (tmp_path / "admin-token").read_text().strip()
    server.should_exit = True
    thread.join(30.0)
    listening.close()
