"""The whole server over HTTP, without a network: the application, its clients, and agents that obey."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.server.served import Served
from tests.integration.server.visitors import Visitors


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
