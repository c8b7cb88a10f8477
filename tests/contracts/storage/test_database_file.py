"""What a server must not do to a database: share a SQLite file, or touch what a newer release has written."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from advisor.storage import Database, DatabaseRefused
from advisor.storage.database import find_newest_revision, upgrade
from advisor.storage.database_file import DatabaseFile


def open_database(path: Path) -> Database:
    return Database(f"sqlite:///{path}", lambda: "unused")


def make_older(path: Path, revision: str = "0005") -> None:
    """A database of an earlier release."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        upgrade(connection, revision)
    engine.dispose()


def revision_of(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("SELECT version_num FROM advisor_alembic_version").fetchone()[0])
    finally:
        connection.close()


def test_file_is_held_by_one_server_whatever_name_it_is_opened_by(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    first = open_database(tmp_path / "here" / "advisor.db")
    first.hold()
    first.hold()
    first.migrate()
    (tmp_path / "there").symlink_to(tmp_path / "here")
    second = open_database(tmp_path / "there" / "advisor.db")
    with pytest.raises(DatabaseRefused, match=r"Another server \(process \d+\) has the database"):
        second.hold()
    first.close()
    second.hold()
    second.close()


def test_database_of_a_newer_release_is_refused_with_what_to_do(database: Database) -> None:
    with database.begin() as work:
        work.connection.execute(text("UPDATE advisor_alembic_version SET version_num = '9999'"))
    for touch in (database.migrate, database.hold):
        with pytest.raises(DatabaseRefused, match="of revision 9999") as refused:
            touch()
        assert "Install" in refused.value.hint
        if database.file is not None:
            database.file.release()


def test_database_is_copied_before_it_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "advisor.db"
    make_older(path)
    database = open_database(path)
    database.migrate()
    database.migrate()
    database.close()
    copy = tmp_path / f"advisor.db.before-{find_newest_revision()}"
    assert [revision_of(path), revision_of(copy)] == [find_newest_revision(), "0005"]
    assert copy.stat().st_mode & 0o777 == 0o600


def test_new_database_is_not_copied_and_few_copies_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "advisor.db"
    database = open_database(path)
    database.migrate()
    database.close()
    assert not list(tmp_path.glob("*before*"))
    (tmp_path / "advisor.db.before-mine").touch()
    for number in range(1, 6):
        DatabaseFile(path).copy_before(f"000{number}")
    kept = sorted(found.name for found in tmp_path.glob("*before-*"))
    assert kept == [f"advisor.db.before-{name}" for name in ("0003", "0004", "0005", "mine")]


def test_copy_replaces_nothing_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    path = tmp_path / "advisor.db"
    make_older(path)
    there = tmp_path / "there"
    there.write_text("mine")
    with pytest.raises(DatabaseRefused, match="is there already"):
        DatabaseFile(path).copy_to(there)
    assert there.read_text() == "mine"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(DatabaseRefused, match="could not be copied"):
        DatabaseFile(path).copy_to(tmp_path / "copy")
    assert {found.name for found in tmp_path.iterdir()} == {"advisor.db", "there"}


def test_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseRefused, match="cannot be written"):
        open_database(tmp_path / "file" / "advisor.db").hold()
