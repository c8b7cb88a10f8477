"""One server of a PostgreSQL is active: the next one follows, and what the former one still writes is refused."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from advisor.errors import Standby, Unavailable
from advisor.protocol.measured.messages import MemberState
from advisor.services.background.scheduling import Scheduler
from advisor.storage import Database
from advisor.storage import database as module
from advisor.storage.activity import Activity
from advisor.storage.tables import Base
from tests.integration.server.served import wait_for
from tests.unit.services.world import World

SILENT_S = 3600.0
"""PostgreSQL counts it as well: no test takes as long."""


class Server:
    """A server without HTTP, with a connection to the database and a clock of its own."""

    def __init__(self, url: str, name: str, silent_s: float = SILENT_S) -> None:
        self.world = World(url, ids=(f"{name}{number}" for number in itertools.count(1)))
        self.database, self.silent_s = self.world.database, silent_s

    def look(self) -> bool:
        """Do what a server does at its ticks; return whether it is active."""
        return self.database.activate(self.silent_s)

    @property
    def driver(self) -> Any:
        """The connection that the lock belongs to."""
        activity: Any = self.database._activity
        return activity._driver


@pytest.fixture
def start(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Starts servers on one database; the time of all goes on by what the test adds to `now_s`."""
    monkeypatch.setattr(
        module, "Activity", lambda engine, silent_s: Activity(engine, silent_s, lambda: clock.now_s)
    )
    started: list[Server] = []
    clock.now_s = 0.0

    def run(name: str, silent_s: float = SILENT_S) -> Server:
        started.append(Server(postgres_url, name, silent_s))
        return started[-1]

    yield run
    for server in started:
        server.database.close()


class Clock:
    """Seconds that tests let pass."""

    now_s = 0.0


clock = Clock()


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


def test_second_server_writes_nothing_and_follows_when_the_first_one_stops(
    start: Callable[..., Server],
) -> None:
    first, second = start("a"), start("b")
    assert first.look()
    for _ in range(3):
        assert not second.look()
        assert first.look()
    assert (first.database.epoch, second.database.epoch) == (1, None)
    with pytest.raises(Standby), second.database.begin():
        pass
    with pytest.raises(Standby):
        second.database.prove_ready()
    assert second.database.tokens_stamp is None
    first.database.close()
    assert second.look()
    assert second.database.epoch == 2
    second.world.register("one")


def test_server_that_postgresql_hears_nothing_from_is_followed(start: Callable[..., Server]) -> None:
    first, second = start("a", silent_s=0.2), start("b")
    assert first.look()
    wait_for(lambda: second.look() or None, "the second one is active")
    assert second.database.epoch == 2


def test_server_that_cannot_be_sure_of_its_lock_stands_by(start: Callable[..., Server]) -> None:
    first = start("a")
    assert first.look()
    clock.now_s += 0.9 * SILENT_S
    assert first.database.epoch is None
    with pytest.raises(Standby), first.database.begin():
        pass
    assert first.look()
    assert first.database.epoch == 1, "it had the lock all the time"


def test_server_whose_connection_breaks_begins_another_epoch(start: Callable[..., Server]) -> None:
    first = start("a")
    assert first.look()
    stamp = first.database.tokens_stamp
    first.driver.close()
    with pytest.raises(Unavailable):
        first.look()
    assert first.database.epoch is None
    wait_for(lambda: first.look() or None, "PostgreSQL has noticed that the connection is closed")
    assert first.database.epoch == 2
    assert first.database.tokens_stamp is not stamp, "tokens may have changed meanwhile"


def test_database_that_is_away_is_told_in_words() -> None:
    database = Database("postgresql://postgres@127.0.0.1:1/none?connect_timeout=1", lambda: "unused")
    for _ in range(2):
        with pytest.raises(Unavailable, match="cannot be reached"):
            database.activate(SILENT_S)
        assert database.epoch is None
    database.close()


ACTS: dict[str, Callable[[World], object]] = {
    "reaper": lambda world: world.reaper.look(world.now),
    "scheduler": lambda world: Scheduler(world.database, world.planner_queue, world.timers).look(world.now),
    "submission": lambda world: world.submit(),
    "registration": lambda world: world.register("late"),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("is_former", [False, True])
def test_whatever_a_former_active_server_still_does_writes_nothing(
    start: Callable[..., Server], act: Callable[[World], object], is_former: bool
) -> None:
    first, second = start("a"), start("b")
    assert first.look()
    # There is something to do: an overdue session, and a job for an idle agent.
    world = first.world
    world.submit()
    agent = world.register("lost")
    (place,) = world.start_session(agent)
    world.beat(place, agent, MemberState.RUNNING)
    world.wait(1000)
    world.submit()
    world.poll(world.register("idle"))
    if is_former:
        # Its lock goes without its knowing.
        first.driver.execute("SELECT pg_advisory_unlock_all()")
        assert second.look()
        assert first.database.epoch == 1
    before = all_rows(first.database)
    if is_former:
        with pytest.raises(Standby):
            act(world)
        assert first.database.epoch is None
    else:
        act(world)
    assert (all_rows(first.database) == before) is is_former


def test_server_that_follows_waits_for_what_the_former_one_is_writing(start: Callable[..., Server]) -> None:
    first, second = start("a"), start("b")
    assert first.look()
    with ThreadPoolExecutor(1) as pool:
        with first.database.begin() as work:
            first.driver.execute("SELECT pg_advisory_unlock_all()")
            following = pool.submit(second.look)
            wait_for(lambda: blocked(first.database), "the other one waits")
            assert second.database.epoch is None
            work.tokens.revoke("none", first.world.now)
        assert following.result(30)
    with pytest.raises(Standby), first.database.begin():
        pass


def test_server_that_is_stopped_within_a_transaction_does_not_keep_the_next_one_waiting(
    start: Callable[..., Server],
) -> None:
    first, second = start("a"), start("b")
    assert first.look()
    with pytest.raises(Unavailable), first.database.begin() as work:  # noqa: PT012
        limit = work.connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        assert limit == "15s"
        work.connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 100"))
        first.driver.execute("SELECT pg_advisory_unlock_all()")
        assert second.look()
        work.tokens.revoke("none", first.world.now)
    assert second.database.epoch == 2


def test_of_servers_that_try_at_one_moment_one_is_active(start: Callable[..., Server]) -> None:
    servers = [start(name) for name in "abcd"]
    barrier = threading.Barrier(len(servers))

    def look(server: Server) -> bool:
        barrier.wait(10)
        return server.look()

    with ThreadPoolExecutor(len(servers)) as pool:
        for epoch in (1, 2, 3):
            assert list(pool.map(look, servers)).count(True) == 1
            (active,) = [server for server in servers if server.database.epoch is not None]
            assert active.database.epoch == epoch
            active.database._activity.leave()  # type: ignore[union-attr]


def test_only_server_of_a_file_is_active_from_its_start(tmp_path: Any) -> None:
    server = Server(f"sqlite:///{tmp_path / 'advisor.db'}", "a")
    server.database.hold()
    assert server.look()
    assert server.database.epoch == 0
    server.database.close()
