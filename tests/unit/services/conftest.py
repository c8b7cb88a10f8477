"""The world that the services live in."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.services.world import World


@pytest.fixture
def world(tmp_path: Path, migrated_file: Path) -> Iterator[World]:
    """A server without HTTP over a fresh SQLite file."""
    path = tmp_path / "advisor.db"
    shutil.copy(migrated_file, path)
    world = World(f"sqlite:///{path}")
    yield world
    world.database.close()
