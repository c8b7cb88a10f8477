"""A database of each kind for every test, and the migrations that the next release will have."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from advisor.storage import Database
from advisor.storage import database as module

_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = {revision!r}, {before!r}


def upgrade() -> None:
    op.add_column("jobs", sa.Column({column!r}, sa.Text(), nullable=False, server_default="new"))
"""


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with all tables."""
    ids = itertools.count(1)
    database = Database(database_url, lambda: f"id{next(ids)}")
    yield database
    database.close()


@pytest.fixture
def release_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Gives the code two migrations more than this release has, and returns their folder."""

    def release() -> Path:
        folder = shutil.copytree(module.VERSIONS.parent, tmp_path / "migrations")
        for column in ("made_up", "made_up_too"):
            before = module.find_newest_revision()
            monkeypatch.setattr(module, "VERSIONS", folder / "versions")
            revision = f"{int(before) + 1:04}"
            text = _MIGRATION.format(revision=revision, before=before, column=column)
            (folder / "versions" / f"{revision}_{column}.py").write_text(text)
        return module.VERSIONS

    return release
