"""Statements that agents' messages run all the time: on SQLite compiled once, and handed to the driver as they are.

SQLAlchemy remembers what it compiled too. Still it takes 50 to 60 µs for each run to find it, to put the parameters in
order and to make a result of the rows, ten times what SQLite needs. On PostgreSQL, which is asked over a socket, that
is no matter, and it runs them.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, Select, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

_make_row: Any = namedtuple
_Processor = Callable[[Any], Any] | None
Statement = Select[*tuple[Any, ...]] | Insert | Update


@dataclass(frozen=True)
class _Compiled:
    """A statement as the driver takes it."""

    text: str
    binds: tuple[tuple[str | None, _Processor, Any], ...]
    """Of each place: the name of what is given for it, and what makes the driver's value of that; or the statement's
    own value."""
    readers: tuple[_Processor, ...]
    """What makes a value of the driver's, for each column."""
    row: Callable[[Sequence[Any]], Any]

    def run(self, connection: Connection, values: Mapping[str, Any]) -> tuple[list[Any], int]:
        given = [
            fixed if name is None else values[name] if write is None else write(values[name])
            for name, write, fixed in self.binds
        ]
        driver: Any = connection.connection.driver_connection
        try:
            cursor = driver.execute(self.text, given)
            found = cursor.fetchall()
        except connection.dialect.loaded_dbapi.Error as error:
            kinds: Any = connection.dialect.loaded_dbapi.Error
            raise DBAPIError.instance(self.text, None, error, kinds, hide_parameters=True) from error
        if not found:
            return [], cursor.rowcount
        readers = self.readers
        rows = [
            self.row([
                value if read is None else read(value) for value, read in zip(values, readers, strict=True)
            ])
            for values in found
        ]  # fmt: skip
        return rows, len(rows)


class Prepared:
    """One statement; share it between threads."""

    def __init__(self, statement: Statement, columns: Sequence[str] = ()) -> None:
        """`columns`: those that an insert gives. No list may be bound, and no default be worked out in Python."""
        self._statement, self._columns = statement, columns
        self._compiled: _Compiled | None = None

    def all(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """Return the rows, each with its columns by name."""
        if connection.dialect.name != "sqlite":
            return list(connection.execute(self._statement, values))
        return self._take(connection.dialect).run(connection, values)[0]

    def one_or_none(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Return the only row; None where there is none."""
        rows = self.all(connection, values)
        assert len(rows) <= 1, "at most one row has this key"
        return rows[0] if rows else None

    def count(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run a statement that writes, and return how many rows it touched."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, values).rowcount
        return self._take(connection.dialect).run(connection, values)[1]

    def _take(self, dialect: Dialect) -> _Compiled:
        if self._compiled is None:
            self._compiled = self._compile(dialect)
        return self._compiled

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled: Any = self._statement.compile(dialect=dialect, column_keys=list(self._columns) or None)
        made_in_python = (*compiled.insert_prefetch, *compiled.update_prefetch, *compiled.post_compile_params)
        assert not made_in_python, "a default is worked out in Python, or a list is bound"
        binds: list[tuple[str | None, _Processor, Any]] = []
        for bind in (compiled.binds[name] for name in compiled.positiontup):
            write = bind.type.dialect_impl(dialect).bind_processor(dialect)
            if bind.required:
                binds.append((bind.key, write, None))
            else:
                own = bind.effective_value
                binds.append((None, None, own if write is None else write(own)))
        columns = self._statement.exported_columns
        row: Any = _make_row("Row", columns.keys())
        readers = tuple(_find_reader(column.type, dialect) for column in columns)
        return _Compiled(str(compiled), tuple(binds), readers, row._make)


def _find_reader(kind: TypeEngine[Any], dialect: Dialect) -> _Processor:
    return kind.dialect_impl(dialect).result_processor(dialect, None)
