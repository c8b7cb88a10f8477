"""A disk that is full: said in words, nothing that was accepted is lost, and what comes later is taken again."""

import itertools
import shutil
import sqlite3
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from advisor.errors import DiskFull, LostRace
from advisor.storage import Database, UnitOfWork
from tests.contracts.storage.test_storage import make_job

MOST = 5000
"""Jobs that no such disk can hold."""


class Disk:
    """A database, and how its disk is filled."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, lambda: uuid.uuid4().hex[:8])
        self.database.migrate()
        self.accepted: list[str] = []
        self._numbers = itertools.count()

    def write(self) -> None:
        with self.database.begin() as work:
            job_id = self._add(work)
        self.accepted.append(job_id)

    def fill(self) -> None:
        for _ in range(MOST):
            self.write()

    def list_missing(self) -> list[str]:
        with self.database.read() as work:
            return [job_id for job_id in self.accepted if work.jobs.version(job_id) is None]

    def _add(self, work: UnitOfWork) -> str:
        job_id = f"j{next(self._numbers)}"
        work.jobs.add(make_job(job_id))
        return job_id


def limit_pages(driver: sqlite3.Connection, most: int) -> None:
    """Let the file not grow beyond so many pages, or beyond those that it has, as on a disk without room."""
    driver.execute(f"PRAGMA max_page_count = {most}")


@pytest.fixture(params=["pages", "file system"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Disk, Callable[[], None]]]:
    """A disk that will be full soon, and what makes room on it."""
    if request.param == "pages":
        disk, most = Disk(f"sqlite:///{tmp_path / 'advisor.db'}"), [1]
        event.listen(disk.database._engine, "connect", lambda driver, _: limit_pages(driver, most[0]))

        def limit_to(pages: int) -> None:
            most[0] = pages
            # SQLite keeps the limit in each connection.
            disk.database._engine.dispose()

        limit_to(1)
        yield disk, lambda: limit_to(2**31 - 2)
        disk.database.close()
        return
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True
        ).returncode
    ):
        pytest.skip("nothing can be mounted here")
    try:
        (folder / "ballast").write_bytes(b"x" * 500_000)
        disk = Disk(f"sqlite:///{folder / 'advisor.db'}")
        yield disk, (folder / "ballast").unlink
        disk.database.close()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_is_told_and_what_was_accepted_stays(disk: tuple[Disk, Callable[[], None]]) -> None:
    full, make_room = disk
    with pytest.raises(DiskFull, match="disk of the server's database is full") as told:
        full.fill()
    assert not isinstance(told.value, LostRace)
    assert (told.value.status, "Free space" in told.value.hint) == (503, True)
    assert told.value.headers["Retry-After"]
    cause = told.value.__cause__
    assert isinstance(cause, OperationalError)
    assert cause.orig.sqlite_errorcode == sqlite3.SQLITE_FULL  # type: ignore[union-attr]
    with pytest.raises(DiskFull):
        full.database.prove_ready()
    assert full.list_missing() == []
    before = len(full.accepted)
    make_room()
    full.write()
    assert len(full.accepted) == before + 1
    assert full.list_missing() == []


def test_database_is_asked_again_some_time_after_its_disk_was_full(
    disk: tuple[Disk, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    full, make_room = disk
    with pytest.raises(DiskFull):
        full.fill()
    make_room()
    monkeypatch.setattr("advisor.storage.database._FULL_FOR_S", 0.0)
    full.database.prove_ready()
