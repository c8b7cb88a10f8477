"""What every new connection to SQLite or PostgreSQL is told, and how its transactions begin."""

import sqlite3
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

SYNCHRONOUS = "FULL"
"""SQLite waits until a commit is on the disk; tests, which no power cut concerns, do not."""
_BUSY_MS = 15_000
_LIMIT = "idle_in_transaction_session_timeout = 15000"
"""PostgreSQL ends a transaction whose server does nothing for 15 s: it was stopped, and holds up all others."""

_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""No room for a page, and none for the index of the write-ahead log."""
_FULL_STATE = "53100"
"""The same of PostgreSQL."""


def tune_postgresql(engine: Engine) -> None:
    """End transactions that stand still, also behind a pooler."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _: object) -> None:
        (process,) = connection.execute("SELECT pg_backend_pid()").fetchone()
        if process != connection.info.backend_pid:
            # A pooler answers, and may have another process run each transaction: nothing stays prepared.
            connection.prepare_threshold = None
        else:
            connection.execute(f"SET {_LIMIT}")
        connection.commit()


def tune_sqlite(engine: Engine) -> None:
    """Write ahead, and sync each commit."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _: object) -> None:
        # The driver's own transaction handling would begin too late and never IMMEDIATE.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout = {_BUSY_MS}",
            "journal_mode = WAL",
            f"synchronous = {SYNCHRONOUS}",
            "foreign_keys = ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


def start_transaction(connection: Connection, *, read_only: bool = False) -> None:
    """Begin a transaction in the database; SQLite's takes the write lock at once where it is to write.

    No listener does that: where an engine has one, SQLAlchemy looks for others at each statement.
    """
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
    elif driver.prepare_threshold is None:
        connection.exec_driver_sql(f"SET LOCAL {_LIMIT}")


def is_disk_full(error: DBAPIError) -> bool:
    """Whether the database could not write because its disk is full."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code in _FULL or getattr(error.orig, "sqlstate", None) == _FULL_STATE
