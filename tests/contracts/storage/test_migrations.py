"""A database of the revision before is brought up to date; a fresh SQLite file gets the tables of all migrations."""

import itertools
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, text

from advisor.errors import Unavailable
from advisor.storage import Database, database
from advisor.storage.database import VERSIONS, find_newest_revision
from advisor.storage.fault_points import FaultPoint, Side
from advisor.storage.tables import Base
from tests.contracts.storage.forms import connect, describe
from tests.contracts.storage.test_storage import add_running_session

TODAY = find_newest_revision()


def store(url: str) -> None:
    """Have a database of today's revision with a job that is being measured."""
    there = Database(url, lambda: "unused")
    there.migrate()
    with there.begin() as work:
        add_running_session(work)
    there.close()


def test_migrations_make_exactly_the_tables_that_the_code_uses(
    empty_url: str, request: pytest.FixtureRequest
) -> None:
    at_once = "sqlite://"
    if not empty_url.startswith("sqlite"):
        server = request.getfixturevalue("postgres_server")
        server.psql("CREATE DATABASE made_at_once")
        at_once = server.get_uri(database="made_at_once")
    with connect(empty_url) as migrated, connect(at_once) as made:
        database.upgrade(migrated)
        Base.metadata.create_all(made)
        told = describe(migrated)
        assert told.pop("advisor_alembic_version")
        told["indexes"] = [index for index in told["indexes"] if "advisor_alembic_version" not in index]
        assert told == describe(made)


def test_fresh_file_is_of_the_revision_that_all_migrations_end_with(tmp_path: Path) -> None:
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    store(fresh)
    with connect(fresh) as made, connect("sqlite://") as migrated:
        database.upgrade(migrated)
        assert describe(made) == describe(migrated)
        assert read_revisions(made) == read_revisions(migrated) == [TODAY]
    assert ScriptDirectory(str(VERSIONS.parent)).get_current_head() == TODAY


def test_database_that_is_up_to_date_is_left_alone(tmp_path: Path) -> None:
    database_there = Database(f"sqlite:///{tmp_path / 'there.db'}", lambda: "unused")
    database_there.migrate()
    statements: list[str] = []
    event.listen(
        Engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2].split()[0])
    )
    database_there.migrate()
    database_there.close()
    assert not {"CREATE", "ALTER", "INSERT", "UPDATE"} & set(statements)


def read_revisions(connection: Connection) -> list[str]:
    return list(connection.execute(text("SELECT version_num FROM advisor_alembic_version")).scalars())


def migrate(url: str, versions: Path, step: int, side: Side, deadly: bool) -> None:
    """Migrate, and be struck after so many steps; or, with the side after, once all of them are committed."""
    database.VERSIONS = versions
    steps = itertools.count(1)

    def strike(point: FaultPoint, at: Side) -> None:
        if at is side and next(steps) == step:
            if deadly:
                os._exit(9)
            raise Unavailable("The database went away.")

    there = Database(url, lambda: "unused", strike=strike)
    try:
        there.migrate()
    finally:
        there.close()


@pytest.mark.parametrize("deadly", [False, True], ids=["fails", "dies"])
def test_database_of_the_revision_before_is_brought_up_to_date_wherever_it_is_struck(
    empty_url: str, deadly: bool, release_next: Callable[[], Path]
) -> None:
    store(empty_url)
    versions = release_next()
    processes = multiprocessing.get_context("forkserver")
    for side, step in ((Side.BEFORE, 1), (Side.BEFORE, 2), (Side.AFTER, 1)):
        if deadly:
            process = processes.Process(target=migrate, args=(empty_url, versions, step, side, True))
            process.start()
            process.join()
            assert process.exitcode == 9
        else:
            with pytest.raises(Unavailable):
                migrate(empty_url, versions, step, side, False)
        with connect(empty_url) as connection:
            assert read_revisions(connection) == [TODAY if side is Side.BEFORE else find_newest_revision()]
    there = Database(empty_url, lambda: "unused")
    there.migrate()
    there.prove_current()
    with there.read() as work:
        assert [work.jobs.get("j1"), *work.sessions.of_job("j1"), *work.members.of_session("s1")]
        assert work.connection.execute(text("SELECT id, made_up, made_up_too FROM jobs")).all() == [
            ("j1", "new", "new")
        ]
        assert work.upkeep.find_damage() == []
    there.close()
