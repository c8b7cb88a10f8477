"""The world that the services live in."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.storage import Database
from tests.unit.services.world import World


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables: copying it is quicker than migrating for every test."""
    path = tmp_path_factory.mktemp("migrated") / "advisor.db"
    database = Database(f"sqlite:///{path}", lambda: "unused")
    database.migrate()
    database.close()
    return path


@pytest.fixture
def world(tmp_path: Path, migrated_file: Path) -> Iterator[World]:
    """A server without HTTP over a fresh SQLite file."""
    path = tmp_path / "advisor.db"
    shutil.copy(migrated_file, path)
    world = World(f"sqlite:///{path}")
    yield world
    world.database.close()
