"""Real servers on one real PostgreSQL: a second one is refused, and one that hung and was followed ends."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text

from .conftest import advisor, environment_on, processes_of, wait_until
from .test_serve import start_server


class Machine:
    """A server's environment and its process."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.environment = environment_on(folder) | {"ADVISOR_DATABASE_URL": url, "ADVISOR_TICK_S": "0.2"}

    def start(self) -> subprocess.Popen[str]:
        """Start the server, and wait until it is ready."""
        return start_server(self.folder, self.environment)


@pytest.fixture
def machines(postgres_url: str, tmp_path: Path) -> Iterator[list[Machine]]:
    """Three, of one database."""
    machines = [Machine(tmp_path / name, postgres_url) for name in ("first", "second", "third")]
    yield machines
    for machine in machines:
        for process in processes_of(machine.folder):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def count_locks(url: str) -> int:
    """How many servers PostgreSQL knows to hold the lock."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        ).scalar_one()
    engine.dispose()
    return int(found)


def test_second_server_is_refused_and_one_that_hung_and_was_followed_ends_with_the_reason(
    machines: list[Machine], postgres_url: str, tmp_path: Path
) -> None:
    first, second, third = machines
    running = first.start()
    refused = advisor("serve", "--port", "0", environment=second.environment, cwd=tmp_path)
    assert refused.returncode == 1
    assert "Another server has the database" in refused.stderr
    assert "Traceback" not in refused.stderr

    running.kill()
    running.communicate(timeout=30)
    second.folder.rename(tmp_path / "refused")
    running = second.start()
    running.send_signal(signal.SIGSTOP)
    wait_until(
        lambda: not count_locks(postgres_url), "PostgreSQL ends the lock of a server that it hears no more"
    )
    follower = third.start()
    running.send_signal(signal.SIGCONT)
    _, told = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "Another server has begun to serve from the database" in told
    assert "Traceback" not in told
    follower.terminate()
    follower.communicate(timeout=30)
    assert follower.returncode == 0
