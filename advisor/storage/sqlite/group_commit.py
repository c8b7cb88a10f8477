"""Writing to SQLite: transactions that come while another one is at work are committed together, with one sync.

A commit has to reach the disk before its request is answered, and a disk does only some hundred of them a second. So
each transaction is a savepoint in a group's: it sees what came before it, succeeds or fails by itself, and is let go
only when the group is committed. Who finds nobody waiting behind it commits at once: alone, nobody waits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

_LONGEST_S = 0.02
"""A group that has lasted this long is committed, however many wait to join it."""

_PATIENCE_S = 5.0
"""As long is waited for a writer when the server stops."""


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


class _Transaction:
    """One of a group."""

    def __init__(self, group: _Group) -> None:
        self.group = group
        self.refusal: BaseException | None = None
        """What it raised, so that nothing of it is kept."""

    def await_outcome(self) -> BaseException | None:
        """Wait for the group's commit, and return what went wrong."""
        self.group.is_settled.wait()
        return self.group.error or self.refusal


class Turn:
    """The right to write: any thread may run transactions in it, one after the other, until it is closed."""

    def __init__(self, writer: "GroupCommit", group: _Group) -> None:
        self._writer, self._group = writer, group
        self._done: list[_Transaction] = []

    @property
    def has_time(self) -> bool:
        """Whether another transaction may join: one always may, unless the group has failed as a whole."""
        return not self._group.is_settled.is_set() and not (self._done and self._writer.is_old(self._group))

    def run(self, transaction: Callable[[Connection], None]) -> None:
        """Run one; it waits for no lock, since the database is this turn's already."""
        with self._writer.savepoint(self._group) as one:
            transaction(self._group.connection)
        self._done.append(one)

    def close(self) -> list[BaseException | None]:
        """Let others write; wait until all is committed, and return what each transaction raised."""
        try:
            self._writer.commit_if_due(self._group)
        finally:
            self._writer.turn.release()
        return [one.await_outcome() for one in self._done]


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
        self._connection: Connection | None = None
        """Kept from group to group: what it has read of the file it need not read again, since nobody else writes."""

    def close(self) -> None:
        """Let the connection go; whoever writes all the same takes it along when the process ends."""
        if self.turn.acquire(timeout=_PATIENCE_S):
            try:
                self._drop(self._connection)
            finally:
                self.turn.release()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Run one transaction; when this returns, or raises what the transaction raised, its group is committed.

        Also what a transaction was refused for may be another one's doing, so that a refusal waits as well. Raises the
        driver's error where the group could not be committed: nothing of it is kept.
        """
        with self._in_turn():
            group = self._group or self._open()
            with self.savepoint(group) as one:
                yield group.connection
            self.commit_if_due(group)
        if (error := one.await_outcome()) is not None:
            raise error

    def open_turn(self) -> "Turn":
        """Wait for the turn to write, and begin; whoever asked has to close it. Raises the driver's error."""
        self._take_turn()
        try:
            return Turn(self, self._group or self._open())
        except BaseException:
            self.turn.release()
            raise

    def _take_turn(self) -> None:
        self._count(1)
        try:
            self.turn.acquire()
        finally:
            self._count(-1)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        self._take_turn()
        try:
            yield
        finally:
            self.turn.release()

    @contextmanager
    def savepoint(self, group: _Group) -> Iterator[_Transaction]:
        """One transaction of a group, which keeps what it raises."""
        one = _Transaction(group)
        try:
            self._mark(group, "SAVEPOINT one")
        except OperationalError as error:
            self._settle(group, error)
            raise
        try:
            yield one
            self._mark(group, "RELEASE one")
        except BaseException as error:
            one.refusal = error
            self._undo(group, error)

    def is_old(self, group: _Group) -> bool:
        """Whether the group has lasted long enough."""
        return time.perf_counter() - group.began_s > self._longest_s

    def commit_if_due(self, group: _Group) -> None:
        """Commit, unless others wait that may still join."""
        if self.waiting == 0 or self.is_old(group):
            self._commit(group)

    def _count(self, change: int) -> None:
        with self._counting:
            self.waiting += change

    def _open(self) -> _Group:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            self._connection.begin()
        except BaseException:
            self._drop(self._connection)
            raise
        self._group = _Group(self._connection)
        return self._group

    def _mark(self, group: _Group, statement: str) -> None:
        try:
            group.statements.execute(statement)
        except self._engine.dialect.dbapi.Error as error:  # type: ignore[union-attr]
            raise OperationalError(statement, None, error) from error

    def _undo(self, group: _Group, cause: BaseException) -> None:
        """Take one transaction back; where SQLite has taken back all of them (a full disk), so it is for all.

        They are told the cause then, rather than that there is nothing left to take back.
        """
        try:
            self._mark(group, "ROLLBACK TO one")
            self._mark(group, "RELEASE one")
        except OperationalError as error:
            self._settle(group, cause if isinstance(cause, DBAPIError) else error)

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
        if error is not None:
            with suppress(DBAPIError):
                # SQLite may still be in the middle of the transaction: only without its connection it surely is not.
                group.connection.invalidate()
            self._drop(group.connection)
        group.is_settled.set()

    def _drop(self, connection: Connection | None) -> None:
        self._connection = None
        if connection is not None:
            with suppress(DBAPIError):
                connection.close()
