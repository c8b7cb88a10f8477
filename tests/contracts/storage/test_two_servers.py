"""Two servers at work on one database at the same moments: nothing is given twice, and nothing is lost twice."""

import threading
from collections.abc import Callable, Iterator

import pytest

from advisor.protocol.messages import MemberState
from advisor.protocol.trials import SessionState
from advisor.services.background.scheduling import Scheduler
from advisor.services.background.stock import Stock
from tests.unit.services.world import World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A server without HTTP on either database."""
    world = World(database_url)
    world.database.migrate()
    yield world
    world.database.close()


def at_once(world: World, look: Callable[[], Callable[[], int]], servers: int = 3) -> int:
    """Let several servers look at the same moment; return the sum of what they did. `look` makes each one's own."""
    barrier, counts, errors = threading.Barrier(servers), [], list[Exception]()

    def run(each: Callable[[], int]) -> None:
        barrier.wait(10)
        try:
            counts.append(each())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(look(),)) for _ in range(servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    return sum(counts)


def make_scheduler(world: World) -> Callable[[], int]:
    scheduler = Scheduler(world.database, Stock(world.think, lambda run: run()), world.timers)
    return lambda: scheduler.look(world.now)


def test_servers_that_schedule_at_one_moment_give_each_agent_one_place(world: World) -> None:
    for number in range(6):
        world.register(f"agent {number}")
    jobs = [world.submit(nodes=2) for _ in range(5)]
    formed = at_once(world, lambda: make_scheduler(world))
    while more := at_once(world, lambda: make_scheduler(world)):
        formed += more
    assert formed == 3
    sessions = [session for job in jobs for session in world.history(job.id).sessions]
    held = [agent for session in sessions for agent in session.agents]
    assert len(sessions) == 3
    assert sorted(held) == [f"agent {number}" for number in range(6)]


def test_servers_that_reap_at_one_moment_lose_a_session_once(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.beat(place, agent, MemberState.RUNNING)
    reapers = [world.make_reaper() for _ in range(3)]
    for reaper in reapers:
        reaper.look(world.now)
    world.elapsed_s += 61
    waiting = iter(reapers)

    def look() -> Callable[[], int]:
        reaper = next(waiting)
        return lambda: reaper.look(world.now)

    assert at_once(world, look) == 1
    (session,) = world.history(job.id).sessions
    assert session.state is SessionState.LOST
