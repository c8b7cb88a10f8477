"""Two servers at work on one database at the same moments: nothing is given twice, and nothing is lost twice."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from advisor.errors import LostRace
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import SessionState
from advisor.services.background.scheduling import Scheduler, apply_thought
from advisor.services.ending import lose_session
from advisor.services.thinking.stock import Stock
from tests.unit.services.scripted_tuning import make_node
from tests.unit.services.world import World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A server without HTTP on either database."""
    world = World(database_url)
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


def test_servers_that_schedule_at_one_moment_form_whole_gangs_or_none(world: World) -> None:
    """Gangs of several sizes out of two pools and two kinds of nodes, round after round."""
    kinds: dict[str, tuple[str, int]] = {}
    for number in range(8):
        name, pool, cpus = f"agent {number}", ("", "gpu")[number % 2], 2 + number // 4
        kinds[name] = pool, cpus
        world.register(name, make_node(name).model_copy(update={"pool": pool, "cpu_count": cpus}))
    submitted = {
        job.id: job
        for number in range(9)
        for job in [
            world.submit(
                nodes=1 + number % 3,
                pool=("", "gpu")[number % 2],
                budget=Budget(max_seconds=60 + 100 * number),
            )
        ]
    }
    for _ in range(6):
        at_once(world, lambda: make_scheduler(world))
        live = [s for job_id in submitted for s in world.history(job_id).live_sessions()]
        held = [name for session in live for name in session.agents]
        assert len(held) == len(set(held))
        for session in live:
            spec = submitted[session.job_id].spec
            assert len(session.agents) == spec.nodes
            assert {kinds[name][0] for name in session.agents} == {spec.pool}
        for session in live[:2]:
            world.cancel(session.job_id)
            with world.work() as work:
                lose_session(work, session, "Its nodes are gone.", world.now)
    assert all(world.history(job_id).sessions for job_id in submitted)


def test_gang_that_loses_one_agent_to_another_server_takes_none(world: World) -> None:
    """The other server's transaction is open, and holds the second agent, while this one wants both."""
    for name in ("one", "two"):
        world.register(name)
    single, double = world.submit(), world.submit(nodes=2)
    with world.database.read() as work:
        agents = work.agents.all()
    thoughts = {job.id: world.stock.order(job.id).result() for job in (single, double)}
    entered = threading.Event()

    def form_double() -> None:
        entered.wait(10)
        with suppress(LostRace), world.work() as work:
            assert not apply_thought(work, thoughts[double.id], agents, world.now)

    thread = threading.Thread(target=form_double)
    thread.start()
    with world.work() as work:
        assert apply_thought(work, thoughts[single.id], agents[1:], world.now)
        entered.set()
    thread.join(30)
    assert world.history(double.id).sessions == ()
    assert world.history(single.id).sessions[0].agents == ("two",)


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
