"""Transactions on SQLite are committed together, and each succeeds or fails by itself."""

import math
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError

from advisor.storage.sqlite.group_commit import GroupCommit


class Ledger:
    """A table, a writer, and how often anything was committed."""

    def __init__(self, file: Path) -> None:
        self.engine: Engine = create_engine(f"sqlite:///{file}")
        self.commits = 0
        event.listen(self.engine, "connect", self._prepare)
        event.listen(self.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        with self.engine.connect() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE entries (number INTEGER PRIMARY KEY,"
                " after INTEGER REFERENCES entries DEFERRABLE INITIALLY DEFERRED)"
            )
            connection.commit()
        event.listen(self.engine, "commit", self._count)
        self.writer = GroupCommit(self.engine, longest_s=math.inf)

    def write(self, number: int, after: int | None = None) -> None:
        with self.writer.begin() as connection:
            connection.execute(
                text("INSERT INTO entries VALUES (:number, :after)"), {"number": number, "after": after}
            )

    def read(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.exec_driver_sql("SELECT number FROM entries ORDER BY number").scalars())

    def write_together(self, *others: Callable[[], None]) -> list[Exception]:
        """Write 1, and let the others come while that is being written; return what was raised."""
        raised: list[Exception] = []

        def run(write: Callable[[], None]) -> None:
            try:
                write()
            except Exception as error:
                raised.append(error)

        threads = [threading.Thread(target=run, args=(other,)) for other in others]

        def begin() -> None:
            with self.writer.begin() as connection:
                connection.exec_driver_sql("INSERT INTO entries VALUES (1, NULL)")
                for thread in threads:
                    thread.start()
                while self.writer.waiting < len(threads):
                    threading.Event().wait(0)

        run(begin)
        for thread in threads:
            thread.join()
        return raised

    def _prepare(self, connection: object, _: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]
        connection.execute("PRAGMA foreign_keys = ON")  # type: ignore[attr-defined]

    def _count(self, _: object) -> None:
        self.commits += 1


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db")
    yield ledger
    ledger.engine.dispose()


def test_transactions_that_come_meanwhile_are_committed_with_one_sync(ledger: Ledger) -> None:
    assert ledger.write_together(*(lambda n=n: ledger.write(n) for n in range(2, 12))) == []
    assert ledger.read() == list(range(1, 12))
    assert ledger.commits == 1
    ledger.write(12)
    assert (ledger.read()[-1], ledger.commits) == (12, 2)


def test_transaction_that_fails_is_taken_back_alone(ledger: Ledger) -> None:
    def fail() -> None:
        with ledger.writer.begin() as connection:
            connection.exec_driver_sql("INSERT INTO entries VALUES (7, NULL)")
            raise KeyError("a defect")

    raised = ledger.write_together(
        lambda: ledger.write(2), fail, lambda: ledger.write(1), lambda: ledger.write(3)
    )
    assert {type(error) for error in raised} == {KeyError, IntegrityError}
    assert ledger.read() == [1, 2, 3]
    assert ledger.commits == 1


def test_group_that_cannot_be_committed_is_kept_for_nobody(ledger: Ledger) -> None:
    # The commit itself finds out that there is no entry 99.
    raised = ledger.write_together(lambda: ledger.write(2), lambda: ledger.write(3, after=99))
    assert [type(error) for error in raised] == [IntegrityError] * 3
    assert ledger.read() == []
    ledger.write(4)
    assert ledger.read() == [4]


def test_group_that_sqlite_took_back_itself_is_kept_for_nobody(ledger: Ledger) -> None:
    with ledger.writer.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE texts (text TEXT)")

    def fill_the_disk() -> None:
        with ledger.writer.begin() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
            connection.exec_driver_sql("INSERT INTO texts VALUES (zeroblob(100000))")

    raised = ledger.write_together(fill_the_disk)
    assert [type(error) for error in raised] == [OperationalError] * 2
    # Not that there was no savepoint any more to take back.
    assert {error.orig.sqlite_errorcode for error in raised} == {sqlite3.SQLITE_FULL}  # type: ignore[attr-defined]
    assert ledger.read() == []
    ledger.write(4)
    assert ledger.read() == [4]


def test_group_is_committed_when_it_has_lasted_long_enough(ledger: Ledger) -> None:
    ledger.writer = GroupCommit(ledger.engine, longest_s=0.0)
    assert ledger.write_together(lambda: ledger.write(2), lambda: ledger.write(3)) == []
    assert ledger.commits == 3


def test_group_that_takes_no_savepoint_any_more_is_kept_for_nobody(ledger: Ledger) -> None:
    mark, marked = ledger.writer._mark, []

    def refuse_the_second(group: Any, statement: str) -> None:
        marked.append(statement)
        if marked.count("SAVEPOINT one") == 2:
            raise OperationalError(statement, None, Exception("The disk is gone."))
        mark(group, statement)

    ledger.writer._mark = refuse_the_second  # type: ignore[method-assign]
    raised = ledger.write_together(lambda: ledger.write(2))
    ledger.writer._mark = mark  # type: ignore[method-assign]
    assert [type(error) for error in raised] == [OperationalError] * 2
    ledger.write(4)
    assert ledger.read() == [4]


def test_groups_share_one_connection_until_one_is_kept_for_nobody(ledger: Ledger) -> None:
    used: list[object] = []
    event.listen(
        ledger.engine, "begin", lambda connection: used.append(connection.connection.driver_connection)
    )
    ledger.write(1)
    ledger.read()
    ledger.write(2)
    with pytest.raises(IntegrityError):
        ledger.write(3, after=99)
    ledger.write(4)
    first, reader, again, failed, another = used
    assert first is again is failed
    assert first not in (reader, another)
    ledger.writer.close()
    assert ledger.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    ledger.write(5)
    assert ledger.read() == [1, 2, 4, 5]
