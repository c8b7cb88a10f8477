"""Which of several servers leads, by clocks that tests turn; and that nobody else writes what only the leader may."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from advisor.errors import Unavailable
from advisor.protocol.measured.messages import MemberState
from advisor.services.background.awake_clock import AwakeClock
from advisor.services.background.leadership import Leadership, NotLeading, Term
from advisor.services.background.reaper import Reaper
from advisor.services.background.scheduling import Scheduler
from advisor.services.thinking.stock import Stock
from advisor.storage import Database
from advisor.storage.repositories.leaders import Seat
from advisor.storage.tables import Base
from tests.integration.server.served import wait_for
from tests.unit.services.world import World

LEASE_S = 10.0
TICK_S = 1.0


class Replica:
    """A server without HTTP: its own connection to the database, its own clock of seconds, and what leaders do."""

    def __init__(self, url: str, name: str, lease_s: float = LEASE_S) -> None:
        self.world = World(url, ids=(f"{name}{number}" for number in itertools.count(1)))
        self.world.database.migrate()
        clock = AwakeClock(lambda: self.world.elapsed_s, 2 * TICK_S)
        self.leadership = Leadership(self.world.database, name, clock, lease_s)
        self.reap = self.leadership.duty(self._make_reaper)
        self.schedule = self.leadership.duty(self._make_scheduler)

    def _make_reaper(self, term: Term) -> Any:
        reaper = Reaper(term, self.world.timers, AwakeClock(lambda: self.world.elapsed_s, 2 * TICK_S))
        return lambda: reaper.look(self.world.now)

    def _make_scheduler(self, term: Term) -> Any:
        scheduler = Scheduler(term, Stock(self.world.think, lambda run: run()), self.world.timers)
        return lambda: scheduler.look(self.world.now)

    @property
    def leads(self) -> bool:
        """Whether it takes itself for the leader."""
        return self.leadership.term is not None

    def run(self, seconds: int) -> int:
        """Let it live; return how many sessions it gave up."""
        lost = 0
        for _ in range(seconds):
            self.world.elapsed_s += TICK_S
            self.world.now += timedelta(seconds=TICK_S)
            self.leadership.look()
            lost += self.reap()
        return lost


@pytest.fixture
def pair(postgres_url: str) -> Iterator[tuple[Replica, Replica]]:
    """Two servers on one PostgreSQL; the first one leads."""
    first, second = Replica(postgres_url, "a"), Replica(postgres_url, "b")
    first.run(1)
    second.run(1)
    yield first, second
    for replica in (first, second):
        replica.world.database.close()


def all_rows(database: Database) -> dict[str, list[Any]]:
    """Everything that is stored but for who leads."""
    with database.read() as work:
        return {
            table.name: sorted(map(repr, work.connection.execute(table.select()).all()))
            for table in Base.metadata.sorted_tables
            if table.name != "leader"
        }


def blocked(database: Database) -> bool:
    """Whether some connection to this database waits for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with database.read() as work:
        return bool(work.connection.execute(text(query)).scalar_one())


def test_one_leads_and_every_server_knows_which(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    assert (first.leads, second.leads) == (True, False)
    assert first.leadership.leader == second.leadership.leader == "a"
    for _ in range(50):
        first.run(1)
        second.run(1)
    assert (first.leads, second.leads) == (True, False)


def test_leader_that_is_silent_for_a_lease_is_followed_and_steps_down(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    second.run(10)
    assert not second.leads
    second.run(2)
    assert second.leads
    assert first.leads, "it was stopped, and does not know"
    first.run(1)
    assert not first.leads
    assert first.leadership.leader == "b"
    assert second.leadership.term is not None
    assert second.leadership.term.epoch == 2


def test_time_in_which_a_server_did_not_run_is_nobodys_silence(pair: tuple[Replica, Replica]) -> None:
    _, second = pair
    for _ in range(4):
        second.world.elapsed_s += 3600
        second.run(1)
    assert not second.leads


def test_leader_that_leaves_is_followed_at_the_next_look(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    first.leadership.leave()
    assert not first.leads
    second.run(1)
    assert second.leads


def test_of_servers_that_follow_at_one_moment_one_leads(postgres_url: str) -> None:
    replicas = [Replica(postgres_url, name) for name in "abcd"]
    barrier = threading.Barrier(len(replicas))

    def look(replica: Replica) -> None:
        barrier.wait(10)
        replica.leadership.look()

    with ThreadPoolExecutor(len(replicas)) as pool:
        for epoch in (1, 2, 3):
            list(pool.map(look, replicas))
            (leader,) = [replica for replica in replicas if replica.leads]
            assert leader.leadership.term is not None
            assert leader.leadership.term.epoch == epoch
            leader.leadership.leave()
    for replica in replicas:
        replica.world.database.close()


def leave_work(leader: Replica) -> None:
    """See that there is something to do: an overdue session and a job for an idle agent."""
    world = leader.world
    world.submit()
    agent = world.register("lost")
    (place,) = world.start_session(agent)
    world.beat(place, agent, MemberState.RUNNING)
    assert leader.run(35) == 0
    world.elapsed_s += 2 * TICK_S
    world.submit()
    world.poll(world.register("idle"))


ACTS: dict[str, Callable[[Replica], int]] = {
    "reaper": lambda leader: leader.reap(),
    "scheduler": lambda leader: leader.schedule(),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_what_a_leader_finds_it_does(pair: tuple[Replica, Replica], act: Callable[[Replica], int]) -> None:
    first, _ = pair
    leave_work(first)
    before = all_rows(first.world.database)
    assert act(first) == 1
    assert all_rows(first.world.database) != before


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_whatever_a_stale_leader_still_does_writes_nothing(
    pair: tuple[Replica, Replica], act: Callable[[Replica], int]
) -> None:
    first, second = pair
    leave_work(first)
    second.leadership.look()
    second.world.elapsed_s += TICK_S
    for _ in range(12):
        second.world.elapsed_s += TICK_S
        second.leadership.look()
    assert second.leads
    assert first.leads
    before = all_rows(first.world.database)
    with suppress(NotLeading):
        assert act(first) == 0
    assert not first.leads
    assert all_rows(first.world.database) == before


def test_new_leader_gives_what_it_finds_new_time(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    first.world.submit()
    agent = first.world.register("one")
    (place,) = first.world.start_session(agent)
    first.world.beat(place, agent, MemberState.RUNNING)
    assert first.run(34) == 0
    assert second.run(12) == 0
    assert second.leads
    assert second.run(58) == 0, "as after a restart: a minute"
    assert second.run(5) == 1


def test_who_follows_waits_for_what_the_leader_is_writing(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    term = first.leadership.term
    assert term is not None
    second.run(10)
    with ThreadPoolExecutor(1) as pool:
        with term.begin() as work:
            following = pool.submit(second.run, 2)
            wait_for(lambda: blocked(first.world.database) or None, "the other one waits")
            work.prove_writable()
        following.result(30)
    assert second.leads
    with second.world.database.read() as work:
        assert work.connection.execute(text("SELECT beats FROM pulse")).scalar_one() == 1


def test_leader_renews_whatever_it_is_writing(pair: tuple[Replica, Replica]) -> None:
    first, second = pair
    term = first.leadership.term
    assert term is not None
    with second.world.database.read() as other:
        before = other.leaders.seat().renewals
    with term.begin() as work:
        work.prove_writable()
        first.leadership.look()
    with second.world.database.read() as other:
        assert other.leaders.seat() == Seat(term.epoch, "a", before + 1)


def test_leader_that_is_stopped_within_a_transaction_does_not_keep_others_waiting(
    pair: tuple[Replica, Replica],
) -> None:
    first, second = pair
    term = first.leadership.term
    assert term is not None
    second.run(10)
    with pytest.raises(Unavailable), term.begin() as work:  # noqa: PT012
        limit = work.connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        assert limit == "15s"
        work.connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 100"))
        work.prove_writable()
        second.run(2)
        work.prove_writable()
    assert second.leads
    with second.world.database.read() as work:
        assert work.connection.execute(text("SELECT beats FROM pulse")).all() == []


def test_only_server_of_a_file_leads_from_its_first_look_and_renews_nothing(database_url: str) -> None:
    for epoch in (1, 2, 3):
        replica = Replica(database_url, f"server {epoch}", lease_s=0)
        replica.run(50)
        assert replica.leads
        with replica.world.database.read() as work:
            assert work.leaders.seat() == Seat(epoch, f"server {epoch}", 0)
        # Whether it leaves or is killed, the next one finds nobody in its way.
        if epoch == 2:
            replica.leadership.leave()
        replica.world.database.close()
