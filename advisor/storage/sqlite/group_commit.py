"""Writing to SQLite: transactions that come while another one is at work are committed together, with one sync.

A commit has to reach the disk before its request is answered, and a disk does only some hundred of them a second. So
each transaction is a savepoint in a group's: it sees what came before it, succeeds or fails by itself, and is let go
only when the group is committed. Who finds nobody waiting behind it commits at once: alone, nobody waits.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

_LONGEST_S = 0.02
"""A group that has lasted this long is committed, however many wait to join it."""


class _Group:
    """Transactions that are committed together."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.statements: Any = connection.connection.driver_connection
        """The driver's own connection: a savepoint needs nothing of what surrounds it."""
        self.began_s = time.perf_counter()
        self.is_settled = threading.Event()
        self.error: DBAPIError | None = None
        """Why none of them was committed."""


class GroupCommit:
    """The one writer of a database; share it between threads."""

    def __init__(self, engine: Engine, longest_s: float = _LONGEST_S) -> None:
        self._engine, self._longest_s = engine, longest_s
        self.turn = threading.Lock()
        """Held by whoever writes."""
        self._counting = threading.Lock()
        self.waiting = 0
        """Transactions that wait for their turn."""
        self._group: _Group | None = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Run one transaction; when this returns, or raises what the transaction raised, its group is committed.

        Also what a transaction was refused for may be another one's doing, so that a refusal waits as well. Raises the
        driver's error where the group could not be committed: nothing of it is kept.
        """
        self._count(1)
        try:
            self.turn.acquire()
        finally:
            self._count(-1)
        refusal: BaseException | None = None
        try:
            group = self._group or self._open()
            try:
                self._mark(group, "SAVEPOINT one")
                yield group.connection
                self._mark(group, "RELEASE one")
            except BaseException as error:
                refusal = error
                self._undo(group)
            if self.waiting == 0 or time.perf_counter() - group.began_s > self._longest_s:
                self._commit(group)
        finally:
            self.turn.release()
        group.is_settled.wait()
        if group.error is not None:
            raise group.error
        if refusal is not None:
            raise refusal

    def _count(self, change: int) -> None:
        with self._counting:
            self.waiting += change

    def _open(self) -> _Group:
        connection = self._engine.connect()
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
        self._group = _Group(connection)
        return self._group

    def _mark(self, group: _Group, statement: str) -> None:
        try:
            group.statements.execute(statement)
        except self._engine.dialect.dbapi.Error as error:  # type: ignore[union-attr]
            raise OperationalError(statement, None, error) from error

    def _undo(self, group: _Group) -> None:
        """Take one transaction back; where SQLite has taken back all of them (a full disk), so it is for all."""
        try:
            self._mark(group, "ROLLBACK TO one")
            self._mark(group, "RELEASE one")
        except OperationalError as error:
            self._settle(group, error)

    def _commit(self, group: _Group) -> None:
        if group.is_settled.is_set():
            return
        error: DBAPIError | None = None
        try:
            group.connection.commit()
        except DBAPIError as refused:
            error = refused
        self._settle(group, error)

    def _settle(self, group: _Group, error: DBAPIError | None) -> None:
        self._group, group.error = None, error
        with suppress(DBAPIError):
            if error is not None:
                # SQLite may still be in the middle of the transaction: only without its connection it surely is not.
                group.connection.invalidate()
            group.connection.close()
        group.is_settled.set()
