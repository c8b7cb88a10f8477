"""Agents shared out between jobs: their order, nodes that leave and nodes that measure badly."""

import pytest

from advisor.errors import Forbidden, InvalidJob, JobIsFinal
from advisor.protocol.asked.jobs import Budget, Job, JobState, Priority
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.measured.telemetry import FlagKind, NodeFlag
from advisor.protocol.measured.trials import SessionState
from advisor.protocol.views import Role
from advisor.services import jobs
from advisor.services.agents import resume_agent, view_agents
from advisor.services.changing import tidying
from advisor.services.measuring.races import Accepted
from advisor.services.timers import Timers
from advisor.services.tokens import Principal
from tests.unit.services.fleet import Fleet
from tests.unit.services.scripted_tuning import make_node
from tests.unit.services.world import ADA, World

BOB = Principal("bob's token", Role.SUBMITTER, "bob")
ROOT = Principal("root's token", Role.ADMIN, "root")
SHORT = Budget(max_seconds=100)


def run(world: World, *agent_ids: str) -> None:
    """Let agents hold their session for a minute and leave it."""
    places = world.start_session(*agent_ids)
    world.wait(10)
    for place, agent_id in zip(places, agent_ids, strict=True):
        world.end(place, agent_id)
        world.poll(agent_id)


def find_running(world: World, *found: Job) -> list[str]:
    return [job.spec.name for job in found if world.job(job.id).state is JobState.RUNNING]


def test_jobs_of_one_priority_come_by_age_whoever_owns_them(world: World) -> None:
    agent = world.register("one")
    first, second = world.submit(name="ada's first"), world.submit(name="ada's second")
    run(world, agent)
    world.cancel(first.id)
    other = world.submit(BOB, name="bob's")
    world.keep_up()
    assert find_running(world, second, other) == ["ada's second"]


def test_small_jobs_never_starve_a_large_one_that_came_first(world: World) -> None:
    ids = [world.register("one"), world.register("two")]
    world.submit(name="running")
    world.start_session(ids[0])
    large = world.submit(name="large", nodes=2)
    small = world.submit(name="small", budget=SHORT)
    world.keep_up()
    assert find_running(world, large, small) == []
    assert f"kept for job {large.id}" in world.job(small.id).state_reason


def test_high_priority_comes_first_and_only_administrators_give_it(world: World) -> None:
    world.register("one")
    with pytest.raises(Forbidden, match="priority is high, which only an administrator gives"):
        world.submit(priority=Priority.HIGH)
    jobs_ = (
        world.submit(name="low", priority=Priority.LOW),
        world.submit(name="usual"),
        world.submit(ROOT, name="high", priority=Priority.HIGH),
    )
    world.keep_up()
    assert find_running(world, *jobs_) == ["high"]
    with world.work() as work:
        clone = tidying.clone_job(work, jobs_[2].id, ADA, None, "", world.now)
    assert clone.spec.priority is Priority.NORMAL


def test_clone_brings_no_sampler_back_that_the_server_takes_no_longer(world: World) -> None:
    job = world.submit(sampler="hub:auto_sampler")
    with world.work() as work, pytest.raises(InvalidJob, match="has not allowed"):
        tidying.clone_job(work, job.id, ADA, None, "", world.now)


def test_priority_that_is_changed_counts_from_the_next_session_on(world: World) -> None:
    one = world.register("one")
    first, second = world.submit(name="first"), world.submit(name="second")
    (place,) = world.start_session(one)
    race = world.begin(place, one)
    assert world.prioritise(first.id, Priority.LOW).spec.priority is Priority.LOW
    world.keep_up()
    assert isinstance(world.report(place, one, race), Accepted)
    world.end(place, one)
    world.keep_up()
    assert find_running(world, first, second) == ["first", "second"]
    assert [session.state for session in world.history(first.id).sessions] == [SessionState.ENDED]
    assert world.history(second.id).live_session() is not None


def test_ended_job_keeps_its_priority_and_high_is_an_administrators(world: World) -> None:
    job = world.submit()
    with pytest.raises(Forbidden, match="priority is high, which only an administrator gives"):
        world.prioritise(job.id, Priority.HIGH)
    assert world.prioritise(job.id, Priority.HIGH, ROOT).spec.priority is Priority.HIGH
    world.cancel(job.id)
    with pytest.raises(JobIsFinal, match="cancelled already"):
        world.prioritise(job.id, Priority.LOW)


def pass_time(world: World, seconds: int, *places: tuple[Assignment, str]) -> None:
    """Let time pass in which agents beat."""
    for _ in range(seconds):
        world.wait(1)
        for place, agent_id in places:
            world.beat(place, agent_id)


def test_agent_gets_no_session_that_may_outlast_its_allocation(world: World) -> None:
    world.register("leaves", ends_in_s=600)
    long, short = world.submit(name="long"), world.submit(name="short", budget=SHORT)
    world.keep_up()
    assert find_running(world, long, short) == ["short"]
    assert "before that leaves will have left" in world.job(long.id).state_reason
    with world.database.read() as work:
        (view,) = view_agents(work, world.now, Timers())
    assert view.ends_in_s == 600


def test_session_is_asked_to_end_before_the_allocation_of_a_node_does(world: World) -> None:
    agent = world.register("one", ends_in_s=300)
    job = world.submit(budget=SHORT)
    (place,) = world.start_session(agent)
    pass_time(world, 240, (place, agent))
    world.keep_up()
    assert world.history(job.id).sessions[0].state is SessionState.RUNNING
    pass_time(world, 1, (place, agent))
    world.keep_up()
    (session,) = world.history(job.id).sessions
    assert (session.state, session.reason) == (SessionState.ENDING, "The allocation of one ends.")


def test_agent_that_comes_back_has_the_end_that_it_says_now(world: World) -> None:
    world.register("one", ends_in_s=1)
    agent = world.register("one")
    world.submit()
    assert world.start_session(agent)


def set_aside(world: World, name: str) -> None:
    with world.work() as work:
        flag = NodeFlag(agent=name, kind=FlagKind.THROTTLED, sentence="Its GPU was throttled.")
        work.agents.set_flag(name, flag)


def test_node_that_measures_badly_is_set_aside_until_somebody_resumes_it(world: World) -> None:
    one, _ = world.register("one"), world.register("two")
    set_aside(world, "one")
    first, second = world.submit(name="first"), world.submit(name="second")
    world.keep_up()
    assert find_running(world, first, second) == ["first"]
    assert world.history(first.id).sessions[-1].agents == ("two",)
    assert world.job(second.id).state_reason.endswith("one is set aside: Its GPU was throttled.")
    with world.work() as work:
        resume_agent(work, one)
    world.keep_up()
    assert find_running(world, first, second) == ["first", "second"]


def test_node_that_is_set_aside_serves_jobs_that_need_all_there_are(world: World) -> None:
    world.register("one")
    set_aside(world, "one")
    job = world.submit()
    world.keep_up()
    assert world.history(job.id).sessions[-1].agents == ("one",)


def test_gang_of_two_pools_is_never_formed(world: World) -> None:
    for name, pool in (("one", "a"), ("two", "b")):
        world.register(name, make_node(name).model_copy(update={"pool": pool}))
    job = world.submit(nodes=2, pool="a")
    world.keep_up()
    assert "2 idle agents in the pool a: 1 connected" in world.job(job.id).state_reason


def test_many_jobs_on_few_agents_all_end(world: World) -> None:
    fleet = Fleet(world, ["one", "two", "three"])
    spans = (2000, 60, 500, 120, 60)
    many = [
        world.submit(ADA if number % 2 else BOB, nodes=1 + number % 3, budget=Budget(max_seconds=seconds)).id
        for number, seconds in enumerate(spans)
    ]
    for job_id in many:
        fleet.play(job_id)
    with world.database.read() as work:
        assert all(jobs.get_job(work, job_id).state is JobState.FINISHED for job_id in many)
