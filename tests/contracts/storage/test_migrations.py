"""A fresh SQLite file gets its tables at once: they are those that every migration, one after the other, makes."""

import itertools
import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text

from advisor.errors import LostRace, Unavailable
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.measured.races import BlockPlan
from advisor.protocol.measured.trials import BlockResult
from advisor.protocol.training.workload import Workload
from advisor.storage import Database, database
from advisor.storage.fault_points import FaultPoint, Side
from advisor.storage.repositories.leaders import Seat
from tests.contracts.storage.forms import describe


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection to an empty SQLite file."""
    engine = create_engine(f"sqlite:///{tmp_path / 'migrated.db'}")
    with engine.connect() as connection, connection.begin():
        yield connection
    engine.dispose()


def open_engine(path: Path) -> Engine:
    return create_engine(f"sqlite:///{path}")


def test_tables_made_at_once_are_those_of_all_migrations(tmp_path: Path, connection: Connection) -> None:
    database.upgrade(connection)
    fresh = Database(f"sqlite:///{tmp_path / 'fresh.db'}", lambda: "unused")
    fresh.migrate()
    fresh.close()
    engine = open_engine(tmp_path / "fresh.db")
    with engine.connect() as made:
        assert describe(made) == describe(connection)
        told = "SELECT version_num FROM advisor_alembic_version"
        assert made.exec_driver_sql(told).all() == connection.exec_driver_sql(told).all()
    engine.dispose()


def test_newest_revision_is_the_head_of_the_migrations() -> None:
    folder = Path(database.__file__).parent / "migrations"
    assert database.find_newest_revision() == ScriptDirectory(str(folder)).get_current_head()


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


def test_database_of_an_earlier_release_is_migrated(tmp_path: Path, connection: Connection) -> None:
    database.upgrade(connection, "0001")
    connection.commit()
    path = tmp_path / "migrated.db"
    older = Database(f"sqlite:///{path}", lambda: "unused")
    older.migrate()
    older.close()
    engine = open_engine(path)
    with engine.connect() as migrated:
        assert "gang" in {column["name"] for column in inspect(migrated).get_columns("sessions")}
    engine.dispose()


def store_rounds(connection: Connection) -> None:
    """A job of before there were races: two blocks of the search, two of one round, and one being measured."""
    moment = "2026-01-01 00:00:00.000000"
    spec = JobSpec(workload=Workload(command=("torchrun", "train.py"))).model_dump_json()
    plan = BlockPlan(block_id="b", trial_number=0).model_dump(mode="json")
    del plan["rules"]
    plan |= {"warmup_steps": 5, "min_steps": 20, "max_steps": 200, "target_s": 3.0, "profile_steps": 2}
    result = BlockResult(steps=2, step_time_s=(0.1, 0.1), samples_per_step=8, samples=16, wall_s=0.2)
    stored = result.model_dump(mode="json", exclude={"segments", "given_up", "same_as", "drifted"})
    connection.exec_driver_sql(
        "INSERT INTO jobs (id, spec, state, stage, state_reason, owner, created_at, cluster, baseline, refusals,"
        " version, generation, events, chunks, log_chars) VALUES"
        f" ('j1', '{spec}', 'finished', 'done', '', '', '{moment}', '{{}}', '{{}}', '{{}}', 1, 1, 0, 0, 0)"
    )
    connection.exec_driver_sql(
        "INSERT INTO sessions (id, job_id, generation, gang, state, because, cold, reason, log_tail,"
        " trouble_fatal, created_at, due_at, total_steps) VALUES"
        f" ('s1', 'j1', 1, 0, 'running', '', '{{}}', '', '', false, '{moment}', '{moment}', 0)"
    )
    for ordinal, round_ in enumerate((None, None, 1, 1, None)):
        state = "issued" if ordinal == 4 else "done"
        written = json.dumps(plan | {"block_id": f"b{ordinal}"})
        connection.execute(
            text(
                "INSERT INTO blocks (id, session_id, job_id, trial_number, ordinal, round, state, plan, note,"
                " issued_at, telemetry) VALUES (:id, 's1', 'j1', 0, :ordinal, :round, :state, :plan, '',"
                f" '{moment}', '[]')"
            ),
            {"id": f"b{ordinal}", "ordinal": ordinal, "round": round_, "state": state, "plan": written},
        )
        if state == "done":
            connection.execute(
                text(
                    "INSERT INTO results (block_id, generation, payload_sha256, body, accepted_at)"
                    f" VALUES (:id, 1, 'sha', :body, '{moment}')"
                ),
                {"id": f"b{ordinal}", "body": json.dumps(stored)},
            )


def test_blocks_of_before_there_were_races_stay_readable(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        database.upgrade(connection, "0003")
        store_rounds(connection)
    engine.dispose()
    there = Database(database_url, lambda: "unused")
    there.migrate()
    with there.begin() as work:
        job = work.jobs.get("j1")
        blocks = work.blocks.of_job("j1")
        assert job is not None
        assert job.continued_at == ()
        assert [(b.race, b.arm) for b in blocks] == [(None, 0), (None, 0), (1, 0), (1, 0), (None, 0)]
        assert [b.result is not None for b in blocks] == [True, True, True, True, False]
        assert all(b.result is None or b.result.segments == () for b in blocks)
        # What was being measured is a race of one arm, with the rules that its plan has kept or the usual ones.
        assert [b.id for b in work.blocks.issued_in("s1")] == ["b4"]
        assert [b.id for b in work.blocks.arms_of("b4")] == ["b4"]
    with pytest.raises(LostRace), there.begin() as work:
        work.blocks.issue("j1", blocks[4].model_copy(update={"id": "b5", "ordinal": 5}))
    there.close()


def migrate(url: str, step: int, side: Side, deadly: bool) -> None:
    """Migrate, and be struck after so many steps; or, with the side after, once all of them are committed."""
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
def test_migration_that_is_struck_after_any_step_begins_anew(database_url: str, deadly: bool) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        database.upgrade(connection, "0003")
        store_rounds(connection)
    revisions = [
        path.name[:4] for path in (Path(database.__file__).parent / "migrations/versions").glob("0*")
    ]
    steps = sum(revision > "0003" for revision in revisions)
    processes = multiprocessing.get_context("forkserver")
    for side, step in [*((Side.BEFORE, 1 + step) for step in range(steps)), (Side.AFTER, 1)]:
        if deadly:
            process = processes.Process(target=migrate, args=(database_url, step, side, True))
            process.start()
            process.join()
            assert process.exitcode == 9
        else:
            with pytest.raises(Unavailable):
                migrate(database_url, step, side, False)
        told = "0003" if side is Side.BEFORE else max(revisions)
        with engine.begin() as connection:
            query = text("SELECT version_num FROM advisor_alembic_version")
            assert connection.execute(query).scalars().all() == [told]
    engine.dispose()
    there = Database(database_url, lambda: "unused")
    there.migrate()
    there.prove_current()
    with there.read() as work:
        assert [block.id for block in work.blocks.of_job("j1")] == ["b0", "b1", "b2", "b3", "b4"]
    there.close()


def test_races_can_be_taken_back(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        database.upgrade(connection, "0003")
        store_rounds(connection)
        before = {c["name"] for c in inspect(connection).get_columns("blocks")}
        database.upgrade(connection)
    with engine.begin() as connection:
        downgrade(connection, "0003")
        assert {c["name"] for c in inspect(connection).get_columns("blocks")} == before
        rounds = connection.execute(text("SELECT round FROM blocks ORDER BY ordinal")).scalars().all()
    engine.dispose()
    assert rounds == [None, None, 1, 1, None]


def downgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


def test_database_of_before_there_were_leaders_has_none_until_one_leads(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        database.upgrade(connection, "0011")
    engine.dispose()
    there = Database(database_url, lambda: "unused")
    there.migrate()
    with there.begin() as work:
        assert work.leaders.seat() == Seat()
        assert work.leaders.take(Seat(), "one") == 1
        assert work.leaders.take(Seat(1, "one", 0), "two") == 2
        assert work.leaders.take(Seat(1, "one", 0), "three") is None
        assert work.leaders.seat() == Seat(2, "two", 0)
    there.close()
