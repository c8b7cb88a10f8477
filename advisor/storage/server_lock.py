"""PostgreSQL's lock that one server holds for as long as a connection of its own stands: a second server is refused.

The lock ends with the connection: at once when its server stops or dies; and where a server hangs, is suspended or
cannot be reached, PostgreSQL closes a connection that it has heard nothing from for a while. Such a server may go on
later. So a server that starts counts an epoch up, and every transaction that writes first locks the row where its
server's epoch still stands: it either ends before the next epoch begins, or writes nothing.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from advisor.errors import Unavailable
from advisor.storage.connections import start_transaction
from advisor.storage.sqlite.database_file import DatabaseRefused
from advisor.storage.tables import EpochRow

_LOCK = 0x666C_6565_75
_log = logging.getLogger(__name__)


class ServerLock:
    """The lock of this process's server; share it between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looking = threading.Lock()
        self._driver: Any = None
        self._is_held = self._is_pooled = False
        self._silent_s = 0.0
        self._epoch: int | None = None

    def take(self) -> None:
        """Hold the lock until `leave`. Raises DatabaseRefused where another server holds it, and Unavailable."""
        with self._looking:
            if self._is_held:
                return
            self._connect()
            if not self._try():
                self._drop()
                raise DatabaseRefused(
                    f"Another server has the database {self._engine.url.database} open.",
                    "Stop that server, or give this one a database of its own (--database-url). If that server has "
                    "just been cut off or its machine has died, start this one again after ten seconds.",
                )

    def begin(self, silent_s: float) -> None:
        """Count the epoch up, with the lock held: what an earlier server has not committed by then, it never will.

        From then on PostgreSQL ends the lock once it has not heard of this server (`keep`) for `silent_s` seconds.
        """
        with self._looking:
            with self._engine.begin() as connection:
                start_transaction(connection)
                more = update(EpochRow).values(epoch=EpochRow.epoch + 1).returning(EpochRow.epoch)
                first = insert(EpochRow).values(epoch=1).returning(EpochRow.epoch)
                epoch = connection.execute(more).scalar_one_or_none()
                if epoch is None:
                    epoch = connection.execute(first).scalar_one()
            self._epoch, self._silent_s = epoch, silent_s
            self._limit()

    def keep(self) -> None:
        """Say a word to PostgreSQL, and take the lock again where its connection was lost.

        Raises Unavailable while that cannot be, and DatabaseRefused once another server has begun meanwhile: what this
        one remembers no longer counts.
        """
        with self._looking:
            if self._driver is None:
                self._connect()
            if self._ask("SELECT epoch FROM epoch").fetchone() != (self._epoch,):
                raise DatabaseRefused(
                    f"Another server has begun to serve from the database {self._engine.url.database}, after this one "
                    "had lost its lock on it. This one stops, and has written nothing since.",
                    "Start it again when the other one has stopped.",
                )
            if not self._is_held:
                if not self._try():
                    raise Unavailable(
                        "PostgreSQL still holds this server's lock for a connection that was lost."
                    )
                self._limit()

    def leave(self) -> None:
        """Let another server follow at once."""
        with self._looking:
            # PostgreSQL takes a moment to notice that a connection is closed.
            with suppress(Exception):
                self._driver.execute("SELECT pg_advisory_unlock_all()")
            self._drop()

    def prove(self, connection: Connection) -> None:
        """Let no other epoch begin until this transaction ends. Raises Unavailable when one has begun."""
        if self._epoch is None:
            return
        mine = select(EpochRow.epoch).where(EpochRow.epoch == self._epoch)
        if connection.execute(mine.with_for_update(read=True, key_share=True)).first() is None:
            raise Unavailable("Another server has begun to serve from this database: this one stops.")

    def _connect(self) -> None:
        with self._told():
            connection = self._engine.raw_connection()
        self._driver = connection.driver_connection
        connection.detach()
        self._is_pooled = self._driver.prepare_threshold is None
        if self._is_pooled:
            _log.warning(
                "A pooler stands before PostgreSQL, and may hand on the connection that a lock belongs to. So this "
                "server takes none: a second one would not be refused, but take this one's place."
            )
        with self._told():
            self._driver.rollback()
            self._driver.autocommit = True

    def _try(self) -> bool:
        asked = f"SELECT pg_try_advisory_lock({_LOCK})"
        self._is_held = self._is_pooled or bool(self._ask(asked).fetchone()[0])
        return self._is_held

    def _limit(self) -> None:
        if not self._is_pooled:
            self._ask(f"SET idle_session_timeout = {round(1000 * self._silent_s)}")

    def _ask(self, statement: str) -> Any:
        with self._told():
            return self._driver.execute(statement)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise what the driver raises as Unavailable, and give the connection up."""
        try:
            yield
        except (self._engine.dialect.loaded_dbapi.Error, SQLAlchemyError) as error:
            self._drop()
            raise Unavailable(
                "The database cannot be reached, or has ended the connection that holds this server's lock."
            ) from error

    def _drop(self) -> None:
        driver, self._driver, self._is_held = self._driver, None, False
        if driver is not None:
            with suppress(Exception):
                driver.close()
