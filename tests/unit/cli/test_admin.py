"""`advisor admin` against a real SQLite file: copies, going back to them, damage that is found, old records that go."""

import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from advisor.protocol.views import JobQuery
from advisor.services.jobs import list_jobs, submit_job
from advisor.storage import Database
from tests.unit.services.scripted_tuning import make_node, make_spec
from tests.unit.services.world import ADA

from .conftest import Run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Opened = Callable[[], Database]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The database of the machine's server."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "advisor.db"
    database = open_at(path)
    database.migrate()
    database.close()
    submit(path, "first")
    return path


def open_at(path: Path) -> Database:
    return Database(f"sqlite:///{path}", lambda: str(datetime.now(UTC).timestamp()))


def submit(path: Path, name: str) -> None:
    database = open_at(path)
    with database.begin() as work:
        submit_job(work, make_spec(name=name), ADA, None, NOW)
    database.close()


def damage_table(path: Path, table: str) -> None:
    """Overwrite the first page of a table, as a failing disk would."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x7f" * size)


def names_in(path: Path) -> set[str]:
    database = open_at(path)
    with database.read() as work:
        names = {job.spec.name for job in list_jobs(work, JobQuery()).items}
    database.close()
    return names


def test_database_is_brought_back_to_its_backup_and_what_was_there_is_kept(run: Run, path: Path) -> None:
    assert run("admin", "backup", "copy.db").exit_code == 0
    submit(path, "second")
    restored = run("admin", "restore", "copy.db")
    assert restored.exit_code == 0, restored.stderr
    assert names_in(path) == {"first"}
    kept = path.with_name("advisor.db.replaced-1")
    assert str(kept) in restored.stdout.replace("\n", "")
    assert names_in(kept) == {"first", "second"}
    assert run("admin", "check").exit_code == 0


def test_backup_is_taken_while_a_server_runs_and_nothing_else_is_done_then(run: Run, path: Path) -> None:
    server = open_at(path)
    server.hold()
    assert run("admin", "backup", "copy.db").exit_code == 0
    for words in (("restore", "copy.db"), ("prune",)):
        refused = run("admin", *words)
        assert refused.exit_code == 1
        assert "Another server" in refused.stderr
    server.close()


def test_what_is_no_backup_is_refused_and_nothing_is_touched(run: Run, path: Path) -> None:
    Path("notes.txt").write_text("not a database " * 500)
    sqlite3.connect("other.db").execute("CREATE TABLE a (b)").connection.close()
    for name in ("notes.txt", "other.db", "missing.db"):
        refused = run("admin", "restore", name)
        assert refused.exit_code == 1
        assert "is no database of Fleet Advisor" in refused.stderr.replace("\n", " ")
    assert names_in(path) == {"first"}
    assert not list(path.parent.glob("*replaced*"))
    assert not Path("missing.db").exists()


def test_check_tells_what_does_not_fit_together(run: Run, path: Path) -> None:
    assert "All is well" in run("admin", "check").stdout
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO trials (job_id, number, purpose, changes, effect, because, state,"
                       " outcome_reason, log_tail, created_at) VALUES ('none', 0, 'search', '{}', 'exact', '',"
                       " 'open', '', '', '2026-01-01')")  # fmt: skip
    connection.commit()
    connection.close()
    found = run("admin", "check", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["damage"] == ["Row 1 of trials belongs to a row of jobs that is missing"]


@pytest.mark.parametrize("words", [("check",), ("prune",)])
def test_file_that_is_no_database_any_more_is_refused_in_words(
    run: Run, path: Path, words: tuple[str, ...]
) -> None:
    path.write_bytes(b"\x7f" * path.stat().st_size)
    refused = run("admin", *words)
    assert refused.exit_code == 1
    told = refused.stderr.replace("\n", " ")
    assert "is damaged, or no database: file is not a database" in told
    assert "advisor admin restore FILE" in told


@pytest.mark.parametrize("name", [b"CREATE TABLE jobs", b"alembic_version", b"tablejobs"])
def test_file_whose_names_are_no_text_is_refused_in_words(run: Run, path: Path, name: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(name, name[:-2] + b"\xff\xfe"))
    refused = run("admin", "check")
    assert refused.exit_code == 1
    assert "is damaged, or no database" in refused.stderr.replace("\n", " ")
    served = run("serve", "--port", "0")
    assert served.exit_code == 1
    assert "is damaged, or no database" in served.stderr.replace("\n", " ")
    assert "Your page" not in served.stderr, "there is none"


def test_an_empty_file_becomes_a_new_database_not_without_a_word(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(b"")
    database = Database(f"sqlite:///{path}", lambda: "id")
    database.hold()
    database.close()
    assert "holds nothing, so it becomes a new database" in caplog.text


def test_check_and_prune_of_a_file_with_a_damaged_page_say_so(run: Run, path: Path) -> None:
    damage_table(path, "jobs")
    found = run("admin", "check", "--json")
    assert found.exit_code == 1
    damage = json.loads(found.stdout)["damage"]
    assert damage
    assert all(sentence.startswith("The file is damaged: ") for sentence in damage)
    pruned = run("admin", "prune", "--json")
    assert pruned.exit_code == 1
    assert json.loads(pruned.stdout)["removed"]
    assert "could not be made smaller: database disk image is malformed" in pruned.stderr.replace("\n", " ")


def test_backup_of_a_damaged_page_is_refused_and_leaves_no_file(run: Run, path: Path) -> None:
    damage_table(path, "jobs")
    refused = run("admin", "backup", "copy.db")
    assert refused.exit_code == 1
    assert "could not be copied" in refused.stderr.replace("\n", " ")
    assert not Path("copy.db").exists()


@pytest.mark.parametrize("name", ["50%25.db", "what?.db", "copy#1.db"])
def test_backup_is_restored_whatever_its_name_would_mean_in_an_address(
    run: Run, path: Path, name: str
) -> None:
    assert run("admin", "backup", name).exit_code == 0
    submit(path, "second")
    before = set(Path.cwd().iterdir())
    restored = run("admin", "restore", name)
    assert restored.exit_code == 0, restored.stderr
    assert names_in(path) == {"first"}
    assert set(Path.cwd().iterdir()) == before, "looking at a copy makes no file"


def test_prune_tells_what_went_and_keeps_what_is_young(run: Run, path: Path) -> None:
    database = open_at(path)
    with database.begin() as work:
        work.agents.add("old", "old", make_node("old"), datetime.now(UTC) - timedelta(days=100))
        work.agents.add("young", "young", make_node("young"), datetime.now(UTC) - timedelta(days=80))
    database.close()
    removed = json.loads(run("admin", "prune", "--json").stdout)["removed"]
    assert removed["agents that measured nothing that is kept, and their tokens"] == 1
    assert names_in(path) == {"first"}


def test_database_that_is_missing_or_older_is_told_and_not_made(run: Run, tmp_path: Path) -> None:
    for words in (("check",), ("prune",), ("backup", "copy.db")):
        refused = run("admin", *words)
        assert refused.exit_code == 1
        assert "There is no database at" in refused.stderr
    assert not (tmp_path / "data" / "advisor.db").exists()


def test_database_on_postgresql_is_left_to_its_own_tools(run: Run) -> None:
    refused = run("admin", "backup", "copy.db", ADVISOR_DATABASE_URL="postgresql://nobody@localhost/none")
    assert refused.exit_code == 2
    assert "pg_dump" in refused.stderr
