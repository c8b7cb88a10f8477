"""A database that counts its transactions, and that can be away."""

from collections.abc import Iterator
from contextlib import contextmanager

from advisor.errors import Unavailable
from advisor.storage import Database, UnitOfWork


class CountedDatabase:
    """The same transactions as those of the database behind it; each one is counted."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.reads = 0
        self.writes = 0
        self.takes_writes = True

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        self.reads += 1
        with self.database.read() as work:
            yield work

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        if not self.takes_writes:
            raise Unavailable("The database cannot be reached or is busy.")
        self.writes += 1
        with self.database.begin() as work:
            yield work
