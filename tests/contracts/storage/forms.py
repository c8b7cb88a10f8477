"""The form of a database's tables, to be compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, inspect

_INDEXES = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
    "postgresql": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
}


@contextmanager
def connect(url: str) -> Iterator[Connection]:
    """One transaction, on a connection that nobody has tuned."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def describe(connection: Connection) -> dict[str, Any]:
    """Everything that a database knows of every table; the order of columns and constraints means nothing."""
    known = inspect(connection)

    def unordered(entries: Any) -> list[str]:
        return sorted(str({**entry, "type": str(entry.get("type"))}) for entry in entries)

    return {
        table: {
            "columns": unordered(known.get_columns(table)),
            "primary key": known.get_pk_constraint(table),
            "foreign keys": unordered(known.get_foreign_keys(table)),
            "unique": unordered(known.get_unique_constraints(table)),
            "checks": unordered(known.get_check_constraints(table)),
        }
        for table in known.get_table_names()
    } | {"indexes": sorted(connection.exec_driver_sql(_INDEXES[connection.dialect.name]).scalars())}
