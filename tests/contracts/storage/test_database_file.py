"""What a server must not do to a database: share a SQLite file, or touch what a newer release has written."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.storage import Database, DatabaseRefused
from advisor.storage.database import find_newest_revision
from advisor.storage.sqlite.database_file import DatabaseFile
from tests.unit.services.scripted_tuning import make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def open_database(path: Path) -> Database:
    return Database(f"sqlite:///{path}", lambda: "unused")


def make(path: Path) -> None:
    database = open_database(path)
    database.migrate()
    database.close()


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


_HOLD = """
import sys
from pathlib import Path
from tests.contracts.storage.test_database_file import open_database
open_database(Path(sys.argv[1])).hold()
"""


def hold_elsewhere(path: Path) -> str:
    """What a server in another process is told that opens the file."""
    done = subprocess.run(
        [sys.executable, "-c", _HOLD, str(path)], capture_output=True, text=True, check=False
    )
    return done.stderr


def test_file_is_held_by_one_server_under_a_hard_link_too(tmp_path: Path) -> None:
    first = open_database(tmp_path / "advisor.db")
    first.hold()
    first.migrate()
    link = tmp_path / "elsewhere" / "other.db"
    link.parent.mkdir()
    link.hardlink_to(tmp_path / "advisor.db")
    assert "maybe under another name of the file" in hold_elsewhere(link)
    with pytest.raises(DatabaseRefused, match="Another server has the database"):
        DatabaseFile(link).replace_by(tmp_path / "any")
    first.close()
    assert hold_elsewhere(link) == ""


def test_database_that_this_release_does_not_know_is_refused_with_what_to_do(database: Database) -> None:
    with database.begin() as work:
        work.connection.execute(text("UPDATE advisor_alembic_version SET version_num = '0099'"))
    for touch in (database.migrate, database.hold):
        with pytest.raises(DatabaseRefused, match=r"Another version.*revision 0099") as refused:
            touch()
        assert "Install the version that has served it" in refused.value.hint
        if database.file is not None:
            database.file.release()


def test_database_from_before_the_first_release_is_taken_over(database: Database) -> None:
    """Its tables are those of the first migration; their number and one stage of a job had other names."""
    with database.begin() as work:
        work.jobs.add(Job(id="j1", spec=make_spec(), state=JobState.PAUSED, created_at=NOW))
        for before in (
            "ALTER TABLE sessions DROP COLUMN facts",
            "DROP INDEX uq_sessions_live_job",
            "ALTER TABLE sessions ADD COLUMN gang INTEGER DEFAULT 0 NOT NULL",
            "CREATE INDEX uq_sessions_live_gang ON sessions (job_id, gang)",
            "UPDATE advisor_alembic_version SET version_num = '0022'",
        ):
            work.connection.execute(text(before))
        work.connection.execute(text("UPDATE jobs SET stage = 'simplify'"))
    with pytest.raises(DatabaseRefused, match="of revision 0022, and this release works with"):
        database.prove_current()
    database.migrate()
    database.prove_current()
    with database.read() as work:
        found = work.jobs.get("j1")
    assert found is not None
    assert found.stage is Stage.TRIM


def test_database_is_copied_before_it_is_migrated(tmp_path: Path, release_next: Callable[[], Path]) -> None:
    path = tmp_path / "advisor.db"
    make(path)
    before = revision_of(path)
    release_next()
    database = open_database(path)
    database.migrate()
    database.migrate()
    database.close()
    copy = tmp_path / f"advisor.db.before-{find_newest_revision()}"
    assert [revision_of(path), revision_of(copy)] == [find_newest_revision(), before]
    assert copy.stat().st_mode & 0o777 == 0o600


def test_new_database_is_not_copied_and_few_copies_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "advisor.db"
    make(path)
    assert not list(tmp_path.glob("*before*"))
    (tmp_path / "advisor.db.before-mine").touch()
    for number in range(1, 6):
        DatabaseFile(path).copy_before(f"000{number}")
    kept = sorted(found.name for found in tmp_path.glob("*before-*"))
    assert kept == [f"advisor.db.before-{name}" for name in ("0003", "0004", "0005", "mine")]


def test_copy_replaces_nothing_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    path = tmp_path / "advisor.db"
    make(path)
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


_LOOK = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM jobs').fetchone()[0])"


def look_from_outside(path: Path) -> int:
    """Open and close the file in another process, as `sqlite3` and `advisor admin` do beside a server."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_who_else_opens_the_file_takes_nothing_from_the_server(tmp_path: Path) -> None:
    path = tmp_path / "advisor.db"
    for _ in range(2):  # a file that is made, and one that is there
        database = Database(f"sqlite:///{path}", lambda: "unused")
        database.hold()
        database.migrate()
        before = look_from_outside(path)
        with database.begin() as work:
            work.jobs.add(Job(id=f"j{before}", spec=make_spec(), state=JobState.QUEUED, created_at=NOW))
        assert look_from_outside(path) == before + 1
        with database.begin() as work:
            work.jobs.add(Job(id=f"k{before}", spec=make_spec(), state=JobState.QUEUED, created_at=NOW))
        assert look_from_outside(path) == before + 2
        database.close()
