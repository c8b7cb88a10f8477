"""A PostgreSQL has one server: a second one is refused, and what a former one still writes is refused as well."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from advisor.errors import Unavailable
from advisor.storage import Database, DatabaseRefused
from advisor.storage.tables import Base
from tests.integration.server.served import wait_for
from tests.unit.services.world import World

SILENT_S = 3600.0
"""PostgreSQL counts it: no test takes as long."""


class Server:
    """A server without HTTP, with a connection to the database of its own."""

    def __init__(self, url: str, name: str) -> None:
        self.world = World(url, ids=(f"{name}{number}" for number in itertools.count(1)))
        self.database = self.world.database

    def start(self, silent_s: float = SILENT_S) -> None:
        """Begin to serve. Raises DatabaseRefused where another server does."""
        self.database.hold()
        self.database.begin_serving(silent_s)

    def starts(self) -> bool | None:
        """Whether it may begin to serve by now, and does."""
        try:
            self.start()
        except DatabaseRefused:
            return None
        return True

    @property
    def driver(self) -> Any:
        """The connection that the lock belongs to."""
        lock: Any = self.database._server_lock
        return lock._driver

    def lose_lock(self) -> None:
        """Lose the lock without knowing of it."""
        self.driver.execute("SELECT pg_advisory_unlock_all()")


@pytest.fixture
def prepare(postgres_url: str) -> Iterator[Callable[[str], Server]]:
    """Makes servers on one database."""
    made: list[Server] = []

    def make(name: str) -> Server:
        made.append(Server(postgres_url, name))
        return made[-1]

    yield make
    for server in made:
        server.database.close()


def all_rows(database: Database) -> dict[str, list[Any]]:
    """Everything that is stored but the epoch."""
    with database.read() as work:
        return {
            table.name: sorted(map(repr, work.connection.execute(table.select()).all()))
            for table in Base.metadata.sorted_tables
            if table.name != "epoch"
        }


def blocked(database: Database) -> bool | None:
    """Whether some connection to this database waits for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with database.read() as work:
        return bool(work.connection.execute(text(query)).scalar_one()) or None


def test_second_server_is_refused_until_the_first_one_stops(prepare: Callable[[str], Server]) -> None:
    first, second = prepare("a"), prepare("b")
    first.start()
    for _ in range(2):
        with pytest.raises(DatabaseRefused, match=r"Another server has the database .* open") as refused:
            second.start()
        assert "Stop that server" in refused.value.hint
        assert first.database.keep_hold()
    first.world.register("one")
    first.database.close()
    second.start()
    second.world.register("two")


def test_server_that_postgresql_hears_nothing_from_can_be_followed(prepare: Callable[[str], Server]) -> None:
    first, second = prepare("a"), prepare("b")
    first.start(silent_s=0.2)
    wait_for(second.starts, "the second one starts")


def test_server_whose_connection_breaks_takes_the_lock_again_and_goes_on(
    prepare: Callable[[str], Server],
) -> None:
    first, second = prepare("a"), prepare("b")
    first.start()
    first.driver.close()
    with pytest.raises(Unavailable):
        first.database.keep_hold()
    first.world.register("one")
    stamp = first.database.tokens_stamp

    def keeps() -> bool | None:
        try:
            return first.database.keep_hold()
        except Unavailable:
            return None

    wait_for(keeps, "PostgreSQL has noticed that the connection is closed")
    assert second.starts() is None
    assert first.database.tokens_stamp is stamp, "what it remembers still counts"


def test_database_that_is_away_is_told_in_words() -> None:
    database = Database("postgresql://postgres@127.0.0.1:1/none?connect_timeout=1", lambda: "unused")
    with pytest.raises(Unavailable, match="cannot be reached"):
        database.hold()
    database.close()


def test_whatever_a_former_server_still_does_writes_nothing_and_it_stops(
    prepare: Callable[[str], Server],
) -> None:
    first, second = prepare("a"), prepare("b")
    first.start()
    first.world.submit()
    first.lose_lock()
    second.start()
    before = all_rows(first.database)
    with pytest.raises(Unavailable, match="Another server has begun"):
        first.world.submit()
    assert all_rows(first.database) == before
    second.world.submit()
    assert not first.database.keep_hold()
    assert first.database.refused is not None
    assert "Another server has begun to serve" in first.database.refused.what


def test_server_that_follows_waits_for_what_the_former_one_is_writing(
    prepare: Callable[[str], Server],
) -> None:
    first, second = prepare("a"), prepare("b")
    first.start()
    with ThreadPoolExecutor(1) as pool:
        with first.database.begin() as work:
            first.lose_lock()
            following = pool.submit(second.start)
            wait_for(lambda: blocked(first.database), "the other one waits")
            assert not following.done()
            work.tokens.revoke("none", first.world.now)
        following.result(30)
    with pytest.raises(Unavailable), first.database.begin():
        pass


def test_server_that_is_stopped_within_a_transaction_does_not_keep_the_next_one_waiting(
    prepare: Callable[[str], Server],
) -> None:
    first, second = prepare("a"), prepare("b")
    first.start()
    with pytest.raises(Unavailable), first.database.begin() as work:  # noqa: PT012
        limit = work.connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        assert limit == "15s"
        work.connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 100"))
        first.lose_lock()
        second.start()
        work.tokens.revoke("none", first.world.now)


def test_of_servers_that_start_at_one_moment_one_serves(prepare: Callable[[str], Server]) -> None:
    servers = [prepare(name) for name in "abcd"]
    barrier = threading.Barrier(len(servers))

    def start(server: Server) -> bool | None:
        barrier.wait(10)
        return server.starts()

    with ThreadPoolExecutor(len(servers)) as pool:
        for _ in range(3):
            started = list(pool.map(start, servers))
            assert started.count(True) == 1
            servers[started.index(True)].database.close()
