"""A database of each kind for every test."""

import itertools
from collections.abc import Iterator

import pytest

from advisor.storage import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with all tables."""
    ids = itertools.count(1)
    database = Database(database_url, lambda: f"id{next(ids)}")
    database.migrate()
    yield database
    database.close()
