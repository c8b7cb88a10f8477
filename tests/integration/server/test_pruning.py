"""A server takes old records away by itself, unless it is told not to."""

import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from advisor.protocol.views import Role
from advisor.storage import Database
from tests.integration.server.served import Served, wait_for

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path, migrated_file: Path) -> Path:
    """A data directory with a token that expired long ago."""
    shutil.copy(migrated_file, tmp_path / "advisor.db")
    database = Database(f"sqlite:///{tmp_path / 'advisor.db'}", lambda: "unused")
    with database.begin() as work:
        work.tokens.add("old", Role.VIEWER, "", "sha", LONG_AGO, expires_at=LONG_AGO)
    database.close()
    return tmp_path


def list_tokens(server: Served) -> set[str]:
    return {token["id"] for token in server.ask("GET", "/tokens").json()["items"]}


def test_server_that_starts_takes_away_what_is_old(folder: Path) -> None:
    server = Served(folder)
    wait_for(lambda: "old" not in list_tokens(server) or None, "the old token is gone")
    server.stop()


def test_server_that_may_not_prune_has_nobody_who_would(folder: Path) -> None:
    for allowed in (False, True):
        server = Served(folder, prune=allowed)
        # Keepers are threads of that name.
        assert ("pruner" in {thread.name for thread in threading.enumerate()}) is allowed
        server.stop()
