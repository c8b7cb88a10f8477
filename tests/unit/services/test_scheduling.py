"""What a look at the waiting jobs costs, and that nothing is allocated on what has changed meanwhile."""

from typing import Any, cast

import pytest

from advisor.errors import AgentNotFound
from advisor.protocol.asked.jobs import Job, JobState, Priority
from advisor.protocol.measured.telemetry import FlagKind, NodeFlag
from advisor.protocol.measured.trials import JobHistory
from advisor.services.agents import Agent, drain_agent, resume_agent
from advisor.services.background.scheduling import Scheduler, apply_decided
from advisor.services.planning.decided import VersionedDecision
from advisor.services.planning.planner_queue import PlannerQueue
from advisor.storage import Database
from advisor.storage.notifier import JOBS
from advisor.tuning.decisions import Decision
from tests.unit.services.counted import CountedDatabase
from tests.unit.services.scripted_tuning import ScriptedTuning, make_node
from tests.unit.services.world import World


class Counting(ScriptedTuning):
    """Counts how often it was asked."""

    asked = 0

    def plan(self, job: Job, history: JobHistory, now: Any, *rest: Any, quick: bool = False) -> Decision:
        """Count, and decide as always."""
        self.asked += 1
        return super().plan(job, history, now, *rest, quick=quick)


@pytest.fixture
def counting(world: World) -> Counting:
    tuning = Counting()
    world.tuning = tuning
    return tuning


def test_jobs_that_wait_are_thought_about_once_and_cost_no_writing(world: World, counting: Counting) -> None:
    for _ in range(20):
        world.submit(nodes=2)
    world.register("one")
    database = CountedDatabase(world.database)
    scheduler = Scheduler(cast(Database, database), world.planner_queue, world.timers)
    scheduler.look(world.now)
    assert (counting.asked, database.writes) == (20, 1)
    for _ in range(5):
        scheduler.look(world.now)
    assert (counting.asked, database.writes) == (20, 1)
    assert database.reads == 6


def test_waiting_job_is_launched_on_the_thought_that_it_waited_with(world: World, counting: Counting) -> None:
    job = world.submit(nodes=2)
    world.register("one")
    world.keep_up()
    assert world.job(job.id).state_reason.startswith("Waiting for 2 idle agents")
    world.register("two")
    world.keep_up()
    assert world.job(job.id).state is JobState.RUNNING
    assert counting.asked == 1


def test_job_that_is_still_thought_about_keeps_its_place(world: World) -> None:
    started: list[object] = []
    planner_queue = PlannerQueue(world.think, started.append)
    scheduler = Scheduler(world.database, planner_queue, world.timers)
    first, second = world.submit(), world.submit()
    world.register("one")
    assert scheduler.look(world.now) == 0
    planner_queue.renew(world.planner_queue.order(second.id).result())
    assert scheduler.look(world.now) == 0
    planner_queue.renew(world.planner_queue.order(first.id).result())
    assert scheduler.look(world.now) == 1
    assert world.job(first.id).state is JobState.RUNNING


def find_idle(world: World) -> list[Agent]:
    with world.database.read() as work:
        return work.agents.all()


def think_about(world: World, job: Job) -> VersionedDecision:
    return world.planner_queue.order(job.id).result()


def test_agent_that_was_given_away_since_it_was_looked_at_is_not_taken(world: World) -> None:
    world.register("one")
    idle = find_idle(world)
    first, second = world.submit(), world.submit()
    decisions_ahead = [think_about(world, job) for job in (first, second)]
    with world.work() as work:
        assert apply_decided(work, decisions_ahead[0], idle, world.now)
    with world.work() as work:
        assert not apply_decided(work, decisions_ahead[1], idle, world.now)
    assert world.history(second.id).sessions == ()


def test_agent_that_came_back_on_another_node_since_is_not_taken(world: World) -> None:
    world.register("one")
    idle = find_idle(world)
    decided = think_about(world, world.submit())
    world.register("one", make_node("another"))
    with world.work() as work:
        assert not apply_decided(work, decided, idle, world.now)


def test_thought_about_an_older_version_is_not_acted_upon(world: World) -> None:
    world.register("one")
    idle = find_idle(world)
    job = world.submit()
    decided = think_about(world, job)
    world.cancel(job.id)
    with world.work() as work:
        assert not apply_decided(work, decided, idle, world.now)


def test_drained_agent_gets_no_work_and_whoever_waits_reads_why(world: World) -> None:
    one = world.register("one")
    with world.work() as work:
        drain_agent(work, one, "Its fan is replaced.")
    job = world.submit()
    world.keep_up()
    world.keep_up()
    assert world.job(job.id).state_reason.endswith("one is drained: Its fan is replaced.")
    with world.work() as work:
        resume_agent(work, one)
        with pytest.raises(AgentNotFound):
            resume_agent(work, "nobody")
    world.keep_up()
    assert world.poll(one) is not None


def test_node_that_measures_badly_is_taken_last(world: World) -> None:
    for name in ("one", "two"):
        world.register(name)
    with world.work() as work:
        flag = NodeFlag(agent="one", kind=FlagKind.THROTTLED, sentence="Its GPU was throttled.")
        work.agents.set_flag("one", flag)
    job = world.submit()
    world.keep_up()
    world.keep_up()
    assert world.history(job.id).sessions[-1].agents == ("two",)


def test_what_may_let_a_job_move_on_calls_for_a_look_and_no_look_calls_for_another(world: World) -> None:
    calls: list[str] = []
    world.database.notifier.on(JOBS, lambda: calls.append("look"))

    def has_called() -> bool:
        called = bool(calls)
        calls.clear()
        return called

    agent = world.register("one")
    assert has_called()
    job = world.submit()
    assert has_called()
    for change in (
        lambda: world.prioritise(job.id, Priority.LOW),
        lambda: world.pause(job.id),
        lambda: world.resume(job.id),
    ):
        change()
        assert has_called()
    (place,) = world.start_session(agent)
    for _ in range(2):
        world.measure(place, agent)
    assert not has_called()
    world.repeat(job.id, 1)
    assert has_called()
    world.end(place, agent)
    assert has_called()
    world.keep_up()
    assert not has_called(), "the job has finished"
    world.extend(job.id, "once more")
    assert has_called()
    world.cancel(job.id)
    assert has_called()
    world.submit()
    world.start_session(agent)
    assert has_called()
    world.wait(1000)
    world.keep_up()
    assert has_called(), "the session is lost"
    with world.work() as work:
        resume_agent(work, agent)
    assert has_called()
