"""What databases hold, as rows of plain values: for either database, and for every form of the tables."""

import gzip
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, create_engine, insert, select, text

from advisor.storage.tables import VERSION_TABLE

Rows = dict[str, list[dict[str, Any]]]
"""Of each table, by its name."""
RECORDED = sorted(folder for folder in (Path(__file__).parent / "releases").iterdir() if folder.is_dir())
"""What earlier releases said and kept (`releases/record.py`)."""


@dataclass(frozen=True)
class Kept:
    """A release's database."""

    revision: str
    rows: Rows


@contextmanager
def connect(url: str) -> Iterator[Connection]:
    """One transaction, on a connection that nobody has tuned."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def read_script(folder: Path) -> str:
    """What a release kept, as the statements that make it on SQLite."""
    return gzip.decompress((folder / "database.sql.gz").read_bytes()).decode()


def read_kept(folder: Path) -> Kept:
    """What a release kept, with the revision that its tables have."""
    with connect("sqlite://") as connection:
        driver: Any = connection.connection.driver_connection
        with closing(driver.cursor()) as cursor:
            cursor.executescript(read_script(folder))
        (revision,) = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars()
        return Kept(revision, read_rows(connection))


def reflect(connection: Connection) -> MetaData:
    """The tables as the database has them, without what migrations keep for themselves."""
    tables = MetaData()
    tables.reflect(connection, only=lambda name, _: name != VERSION_TABLE)
    return tables


def read_rows(connection: Connection) -> Rows:
    """Everything that a database holds."""
    return {
        table.name: [
            {name: _in_utc(value) for name, value in row.items()}
            for row in connection.execute(select(table)).mappings()
        ]
        for table in reflect(connection).sorted_tables
    }


def insert_rows(connection: Connection, rows: Rows) -> None:
    """Store rows as they are, and have PostgreSQL number what comes later behind them."""
    for table in reflect(connection).sorted_tables:
        for row in rows.get(table.name, ()):
            connection.execute(insert(table), row)
        if connection.dialect.name == "postgresql" and "serial" in table.columns:
            latest = f"SELECT max(serial) FROM {table.name}"
            connection.execute(
                text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'serial'), ({latest}))")
            )


def _in_utc(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
