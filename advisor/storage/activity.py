"""Which server of a PostgreSQL is active: the one that holds a lock for as long as its connection stands.

The others stand by: they serve nothing, and try for the lock. It ends with the connection: at once when its server
stops or dies; and where a server hangs, is suspended or cannot be reached, PostgreSQL closes a connection that it has
heard nothing from for a while. Such a server may go on later. So a server that becomes active counts an epoch up, and
every transaction that writes first locks the row where its server's epoch still stands: it either ends before the next
epoch begins, or writes nothing.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from advisor.errors import Standby, Unavailable
from advisor.storage.connections import start_transaction
from advisor.storage.tables import EpochRow

_LOCK = 0x666C_6565_75
_TRUST = 0.8
"""Of the time after which PostgreSQL closes the connection: for so long a server counts on its lock without asking."""
_log = logging.getLogger(__name__)


class Activity:
    """Whether this server is the active one; share it between threads."""

    def __init__(self, engine: Engine, silent_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        """`silent_s`: after so long without a word from the active server PostgreSQL lets another one follow.

        `now_s` is a clock of seconds that goes on while the process is stopped.
        """
        self._engine, self._silent_s, self._now_s = engine, silent_s, now_s
        self._looking = threading.Lock()
        self._driver: Any = None
        self._heard_s = -math.inf
        self._epoch: int | None = None
        self._is_pooled = False

    @property
    def epoch(self) -> int | None:
        """The epoch in which this server is active; None while it stands by, or cannot be sure of its lock."""
        return self._epoch if self._now_s() < self._heard_s + _TRUST * self._silent_s else None

    def lock(self) -> bool:
        """Keep the lock, or try to get it; return whether this server has it. Raises Unavailable."""
        with self._looking:
            if self._driver is None:
                self._driver = self._connect()
            asked_s = self._now_s()
            if self._epoch is None:
                return bool(self._ask(f"SELECT pg_try_advisory_lock({_LOCK})").fetchone()[0])
            self._ask("SELECT 1")
            self._heard_s = asked_s
            return True

    def begin(self) -> None:
        """Count the epoch up, with the lock held: what an earlier server has not committed by then, it never will.

        Raises Unavailable when the lock was lost meanwhile.
        """
        with self._looking:
            with self._engine.begin() as connection:
                start_transaction(connection)
                more = update(EpochRow).values(epoch=EpochRow.epoch + 1).returning(EpochRow.epoch)
                first = insert(EpochRow).values(epoch=1).returning(EpochRow.epoch)
                epoch = connection.execute(more).scalar_one_or_none()
                if epoch is None:
                    epoch = connection.execute(first).scalar_one()
            asked_s = self._now_s()
            # Only from here on: before, a migration may have kept this server from saying a word for long.
            self._ask(f"SET idle_session_timeout = {0 if self._is_pooled else round(1000 * self._silent_s)}")
            self._epoch, self._heard_s = epoch, asked_s
        _log.info("This server is active from now on (epoch %s).", epoch)

    def leave(self) -> None:
        """Let another server follow at once."""
        with self._looking:
            # PostgreSQL takes a moment to notice that a connection is closed.
            with suppress(Exception):
                self._driver.execute("SELECT pg_advisory_unlock_all()")
            self._drop()

    def prove(self, connection: Connection, epoch: int) -> None:
        """Let no other epoch begin until this transaction ends. Raises Standby when one has begun."""
        query = (
            select(EpochRow.epoch).where(EpochRow.epoch == epoch).with_for_update(read=True, key_share=True)
        )
        if connection.execute(query).first() is None:
            with self._looking:
                if self._epoch == epoch:
                    self._drop()
            raise Standby

    def _connect(self) -> Any:
        with self._told():
            connection = self._engine.raw_connection()
        driver: Any = connection.driver_connection
        connection.detach()
        self._is_pooled = driver.prepare_threshold is None
        if self._is_pooled:
            _log.warning(
                "A pooler stands before PostgreSQL. This server can work through it, but only as the only one: the "
                "lock that makes a second server wait belongs to a connection, and a pooler may hand that on."
            )
        with self._told():
            driver.rollback()
            driver.autocommit = True
        return driver

    def _ask(self, statement: str) -> Any:
        with self._told():
            return self._driver.execute(statement)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise what the driver raises as Unavailable, and give the lock up."""
        try:
            yield
        except (self._engine.dialect.loaded_dbapi.Error, SQLAlchemyError) as error:
            self._drop()
            raise Unavailable(
                "The database cannot be reached, or has ended the connection that holds this server's lock."
            ) from error

    def _drop(self) -> None:
        if self._epoch is not None:
            _log.warning(
                "This server is not active any more: its lock on the database is gone. It stands by and writes nothing."
            )
        driver, self._driver, self._epoch, self._heard_s = self._driver, None, None, -math.inf
        if driver is not None:
            with suppress(Exception):
                driver.close()
