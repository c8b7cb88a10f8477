"""Column types that mean the same on SQLite and PostgreSQL: text, moments and JSON documents.

A document that cannot be read raises UnreadableRecord, and a reader of many goes on without it: one job stops then, and
not the server.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter
from sqlalchemy import ColumnElement, Connection, DateTime, Dialect, Row, Select, Text, TypeDecorator
from sqlalchemy.orm import InstrumentedAttribute

from advisor.errors import UnreadableRecord
from advisor.protocol.reading import Unreadable, read_document
from advisor.protocol.training.workload import WITH_SECRETS

Found = TypeVar("Found")

_log = logging.getLogger(__name__)

AnyRow = Row[*tuple[Any, ...]]
"""A row of any columns; the function that takes it knows which."""

_NUL, _SUBSTITUTE = "\x00", "\ufffd"

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""How constraints are named, so that migrations can find them."""


class Words(TypeDecorator[str]):
    """Text. PostgreSQL refuses NUL characters, and logs and host names hold whatever a script wrote."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _: Dialect) -> str | None:
        """Replace NUL characters."""
        return value.replace(_NUL, _SUBSTITUTE) if value is not None else None


class Moment(TypeDecorator[datetime]):
    """A point in time, always in UTC. SQLite keeps no time zone, so that it is added when reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _: Dialect) -> datetime | None:
        """Refuse naive times: their zone could not be told later."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime cannot be stored: give it a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _: Dialect) -> datetime | None:
        """Return the time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Document(TypeDecorator[Any]):
    """A protocol model (or a typed dictionary or tuple) as JSON text, read like a peer's message."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def process_bind_param(self, value: Any, _: Dialect) -> str | None:
        """Write JSON; numbers that are not finite cannot get here, the models refuse them."""
        if value is None:
            return None
        if isinstance(value, BaseModel):
            return value.model_dump_json(context=WITH_SECRETS)
        return self._adapter.dump_json(value, context=WITH_SECRETS).decode()

    def process_result_value(self, value: str | None, _: Dialect) -> Any:
        """Read JSON into the model; raises UnreadableRecord."""
        if value is None:
            return None
        try:
            return read_document(self.kind, value)
        except Unreadable as error:
            raise UnreadableRecord(f"What is stored cannot be read ({error}).") from error


def read_each(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    key: InstrumentedAttribute[str],
    build: Callable[[AnyRow], Found],
    most: int | None = None,
) -> list[Found]:
    """Return what `build` makes of every row, of the first `most`; one that cannot be read is left out, and the log
    says which.

    `key` tells the rows apart. They are read one by one only where one of them cannot be read.
    """
    try:
        first = query if most is None else query.limit(most)
        return [build(row) for row in connection.execute(first)]
    except UnreadableRecord:
        found: list[Found] = []
        for name in connection.execute(query.with_only_columns(key)).scalars().all():
            only: ColumnElement[bool] = key == name
            try:
                found += [build(row) for row in connection.execute(query.where(only))]
            except UnreadableRecord as error:
                _tell(f"{key.class_.__tablename__} {name} is left out. {error.sentence} {error.hint}")
            if len(found) == most:
                break
        return found


@cache
def _tell(sentence: str) -> None:
    """Log it once: the same rows are read at every tick of the keeper."""
    _log.warning("%s", sentence)
