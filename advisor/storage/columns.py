"""Column types that mean the same on SQLite and PostgreSQL: text, moments and JSON documents."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, TypeAdapter
from sqlalchemy import DateTime, Dialect, Row, Text, TypeDecorator

from advisor.protocol.workload import WITH_SECRETS

AnyRow = Row[*tuple[Any, ...]]
"""A row of any columns; the function that takes it knows which."""

_NUL, _SUBSTITUTE = "\x00", "\ufffd"


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
        """Refuse naive times: nobody could say later what they meant."""
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
    """A protocol model (or a typed dictionary or tuple) as JSON text, validated when it is read."""

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
        """Read JSON into the model."""
        return None if value is None else self._adapter.validate_json(value)
