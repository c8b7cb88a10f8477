"""How many records one answer takes: a record may hold a megabyte, so that a number of them bounds no answer."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    String,
    TypeDecorator,
    func,
    literal,
    type_coerce,
)

from advisor.storage.tables import Base

Item = TypeVar("Item")

MOST_CHARACTERS = 4 * 2**20
"""Text that the records of a page hold together, but for a page of one."""


class Part(list[Item]):
    """Records of a list in their order, at most so many, and whether more follow."""

    def __init__(self, records: Sequence[Item], most: int) -> None:
        super().__init__(records[:most])
        self.has_more = len(records) > most


def count_fitting(
    connection: Connection, query: Select[*tuple[Any, ...]], limit: int, *tables: type[Base]
) -> int:
    """Return how many records a page of at most `limit` of a query has, at least one.

    Only the sizes of the texts in the columns of `tables` are read.
    """
    sizes = connection.execute(query.limit(limit).with_only_columns(_measure(tables))).scalars()
    fitting = total = 0
    for size in sizes:
        total += size
        if fitting and total > MOST_CHARACTERS:
            break
        fitting += 1
    return max(1, fitting)


def _measure(tables: Sequence[type[Base]]) -> ColumnElement[int]:
    size: ColumnElement[int] = literal(0, Integer)
    for column in (column for table in tables for column in table.__table__.columns):
        kind = column.type.impl if isinstance(column.type, TypeDecorator) else column.type
        if isinstance(kind, String):
            size = size + func.coalesce(func.length(type_coerce(column, String)), 0)
    return size
