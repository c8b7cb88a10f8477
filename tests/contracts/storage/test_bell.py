"""Calls between servers: they come from other servers of a PostgreSQL, after whatever breaks, or it is said once."""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from advisor.protocol.views import EventKind
from advisor.storage import Database
from advisor.storage.bell import JOBS, PLACES, story_of
from tests.integration.server.served import wait_for
from tests.unit.services.world import World


class Server:
    """One server's end of the bell."""

    def __init__(self, url: str, name: str) -> None:
        self.world = World(url)
        self.database = self.world.database
        self.database.migrate()
        self.called: queue.Queue[str] = queue.Queue()
        self.listen(JOBS)
        self.database.bell.start(name)
        wait_for(lambda: self.database.bell.is_heard or None, f"{name} hears")
        self.forget()

    def listen(self, topic: str) -> None:
        """Remember calls for a topic."""
        self.database.bell.on(topic, lambda: self.called.put(topic))

    def forget(self) -> None:
        """Forget the calls that came so far."""
        while not self.called.empty():
            self.called.get_nowait()


@pytest.fixture
def start(postgres_url: str) -> Iterator[Callable[[str], Server]]:
    """Start servers on one PostgreSQL."""
    started: list[Server] = []

    def run(name: str) -> Server:
        started.append(Server(postgres_url, name))
        return started[-1]

    yield run
    for server in started:
        server.database.close()


def test_calls_come_to_every_server_once(start: Callable[[str], Server]) -> None:
    one, two = start("one"), start("two")
    one.database.bell.ring(PLACES)
    one.database.bell.ring(JOBS)
    assert two.called.get(timeout=30) == JOBS
    two.database.bell.ring(JOBS)
    assert [one.called.get(timeout=30) for _ in range(2)] == [JOBS, JOBS]
    assert two.called.get(timeout=30) == JOBS
    assert one.called.empty()
    assert two.called.empty()


def test_who_follows_a_job_is_called_when_another_server_writes_its_story(
    start: Callable[[str], Server],
) -> None:
    one, two = start("one"), start("two")
    job = one.world.submit()
    two.listen(story_of(job.id))
    with one.database.begin() as work:
        work.events.append(job.id, EventKind.JOB, "Something happened.", one.world.now)
    assert two.called.get(timeout=30) == story_of(job.id)


def test_what_is_rolled_back_is_not_told(start: Callable[[str], Server]) -> None:
    one = start("one")
    job = one.world.submit()
    one.listen(story_of(job.id))
    one.forget()
    with pytest.raises(ZeroDivisionError), one.database.begin() as work:  # noqa: PT012
        work.events.append(job.id, EventKind.JOB, "Something happened.", one.world.now)
        raise ZeroDivisionError
    assert one.called.empty()


def test_connection_that_was_ended_is_made_again_and_everybody_looks_once(
    start: Callable[[str], Server],
) -> None:
    one, two = start("one"), start("two")
    with two.database.begin() as work:
        ended = work.connection.execute(
            text(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            )
        )
        assert ended.scalar_one() == 2
    assert one.called.get(timeout=30) == JOBS
    assert two.called.get(timeout=30) == JOBS
    wait_for(lambda: (one.database.bell.is_heard and two.database.bell.is_heard) or None, "both hear again")
    one.database.bell.ring(JOBS)
    assert two.called.get(timeout=30) == JOBS


def test_on_sqlite_calls_stay_in_the_process(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'advisor.db'}", lambda: "unused")
    called: list[str] = []
    database.bell.start("one")
    with database.bell.waiting(JOBS, lambda: called.append(JOBS)):
        database.bell.ring(JOBS)
        database.bell.ring(PLACES)
    database.bell.ring(JOBS)
    assert called == [JOBS]
    assert database.bell.is_heard
    database.close()
