"""What tasks of the event loop write to SQLite: in order, together, and each for itself."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from sqlalchemy import event

from advisor.errors import InvalidRequest, LostRace, Unavailable
from advisor.protocol.views import Role
from advisor.storage import Database, UnitOfWork
from advisor.storage.bell import JOBS
from tests.contracts.storage.test_storage import NOW, make_job


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'advisor.db'}", lambda: "id")
    database.migrate()
    yield database
    database.close()


def add_job(work: UnitOfWork, number: int) -> int:
    work.jobs.add(make_job(f"j{number}"))
    work.rung.add(JOBS)
    return number


def list_jobs(database: Database) -> list[str]:
    with database.read() as work:
        return [job_id for number in range(200) if work.jobs.version(job_id := f"j{number}") is not None]


def test_tasks_write_in_order_and_with_few_commits(database: Database) -> None:
    commits, calls = [], []
    event.listen(database._engine, "commit", commits.append)
    database.bell.on(JOBS, lambda: calls.append(len(list_jobs(database))))

    async def write_many() -> list[int]:
        return await asyncio.gather(*(database.write(lambda work, n=n: add_job(work, n)) for n in range(50)))  # type: ignore[misc]

    assert asyncio.run(write_many()) == list(range(50))
    assert list_jobs(database) == [f"j{number}" for number in range(50)]
    # Those that came while others were written wait for one turn; each call was made after a commit.
    assert len(commits) < 25
    assert calls
    assert calls[-1] == 50


def test_one_that_fails_is_taken_back_alone(database: Database) -> None:
    def fail(work: UnitOfWork) -> None:
        add_job(work, 7)
        raise InvalidRequest("No.")

    async def write_three() -> list[object]:
        return await asyncio.gather(
            database.write(lambda work: add_job(work, 1)), database.write(fail),
            database.write(lambda work: add_job(work, 1)), database.write(lambda work: add_job(work, 2)),
            return_exceptions=True,
        )  # fmt: skip

    first, refused, double, last = asyncio.run(write_three())
    assert (first, last) == (1, 2)
    assert isinstance(refused, InvalidRequest)
    assert isinstance(double, LostRace)
    assert list_jobs(database) == ["j1", "j2"]


def test_threads_and_tasks_write_side_by_side(database: Database) -> None:
    def write_in_thread(first: int) -> None:
        for number in range(first, first + 20):
            with database.begin() as work:
                add_job(work, number)

    async def write_many() -> None:
        await asyncio.gather(*(database.write(lambda work, n=n: add_job(work, n)) for n in range(100, 150)))  # type: ignore[misc]

    threads = [threading.Thread(target=write_in_thread, args=(first,)) for first in (0, 20, 40)]
    for thread in threads:
        thread.start()
    asyncio.run(write_many())
    for thread in threads:
        thread.join()
    assert len(list_jobs(database)) == 110


def test_database_that_cannot_be_written_is_told_to_everyone_and_tried_again(
    database: Database, tmp_path: Path
) -> None:
    with database._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "advisor.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def write_two() -> list[object]:
        return await asyncio.gather(
            *(database.write(lambda work, n=n: add_job(work, n)) for n in (1, 2)),  # type: ignore[misc]
            return_exceptions=True,
        )

    assert [type(error) for error in asyncio.run(write_two())] == [Unavailable] * 2
    other.execute("ROLLBACK")
    other.close()
    assert asyncio.run(write_two()) == [1, 2]


def test_whose_request_is_gone_is_written_all_the_same(database: Database) -> None:
    async def leave() -> None:
        task = asyncio.ensure_future(database.write(lambda work: add_job(work, 1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.write(lambda work: add_job(work, 2))

    asyncio.run(leave())
    assert list_jobs(database) == ["j1", "j2"]


def test_tokens_that_a_task_changes_are_looked_up_anew(database: Database) -> None:
    def revoke_token(work: UnitOfWork) -> None:
        work.tokens.add("t", Role.VIEWER, "x", "hash", NOW, None)
        work.tokens.revoke("t", NOW)

    before = database.tokens_stamp
    asyncio.run(database.write(revoke_token))
    assert database.tokens_stamp is not before


def test_each_is_run_with_what_its_own_task_is_about(database: Database) -> None:
    about: ContextVar[int] = ContextVar("about", default=-1)

    async def write_one(number: int) -> int:
        about.set(number)
        return await database.write(lambda _: about.get())

    async def write_many() -> list[int]:
        return await asyncio.gather(*(write_one(number) for number in range(20)))

    assert asyncio.run(write_many()) == list(range(20))


def test_loop_that_comes_late_to_its_turn_still_writes(database: Database) -> None:
    assert database._writer is not None
    database._writer._longest_s = 0.0

    async def write_many() -> None:
        await asyncio.gather(*(database.write(lambda work, n=n: add_job(work, n)) for n in range(5)))  # type: ignore[misc]

    asyncio.run(write_many())
    assert len(list_jobs(database)) == 5


def test_crowd_is_told_while_many_wait_and_not_after(database: Database) -> None:
    seen = []

    def look(work: UnitOfWork, number: int) -> None:
        seen.append(database.is_crowded)
        add_job(work, number)

    async def write_many() -> None:
        await asyncio.gather(*(database.write(lambda work, n=n: look(work, n)) for n in range(20)))  # type: ignore[misc]

    assert not database.is_crowded
    asyncio.run(write_many())
    assert seen[0]
    assert not seen[-1]
    assert not database.is_crowded
