"""Agents shared out between jobs and owners: order, lending, nodes that leave and nodes that measure badly."""

import pytest

from advisor.errors import Forbidden, JobIsFinal
from advisor.protocol.asked.jobs import Budget, Job, JobState, Priority
from advisor.protocol.measured.messages import Assignment, SessionEnd
from advisor.protocol.measured.telemetry import FlagKind, NodeFlag
from advisor.protocol.measured.trials import Outcome, SessionState
from advisor.protocol.views import Role
from advisor.services import jobs
from advisor.services.agents import resume_agent, view_agents
from advisor.services.changing import tidying
from advisor.services.measuring import sessions
from advisor.services.measuring.races import Accepted
from advisor.services.timers import Timers
from advisor.services.tokens import Principal
from advisor.services.webhooks.receivers import Receivers
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


def test_owner_with_one_job_does_not_wait_for_all_of_somebody_elses(world: World) -> None:
    agent = world.register("one")
    first, second = (world.submit(name=name) for name in ("ada's first", "ada's second"))
    run(world, agent)
    world.cancel(first.id)
    other = world.submit(BOB, name="bob's")
    world.keep_up()
    assert find_running(world, second, other) == ["bob's"]


def test_of_two_owners_who_hold_nothing_the_one_who_used_less_lately_comes_first(world: World) -> None:
    one = world.register("one")
    mine = world.submit(name="mine")
    run(world, one)
    world.cancel(mine.id)
    waiting = world.submit(name="ada's"), world.submit(BOB, name="bob's")
    world.keep_up()
    assert find_running(world, *waiting) == ["bob's"]


def test_use_is_forgotten_after_a_day(world: World) -> None:
    one = world.register("one")
    mine = world.submit(name="mine")
    run(world, one)
    world.cancel(mine.id)
    world.wait(24 * 3600 + 1)
    world.poll(one)
    waiting = world.submit(name="ada's"), world.submit(BOB, name="bob's")
    world.keep_up()
    assert find_running(world, *waiting) == ["ada's"]


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
        clone = tidying.clone_job(work, jobs_[2].id, ADA, None, Receivers.of(()), world.now)
    assert clone.spec.priority is Priority.NORMAL


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


def lend(world: World) -> tuple[list[str], Job, Job, Job]:
    """A long session on the first of two agents, a job that waits for both, and a short one on the second."""
    ids = [world.register("one"), world.register("two")]
    long = world.submit(name="long")
    world.start_session(ids[0])
    large = world.submit(name="large", nodes=2)
    short = world.submit(name="short", budget=SHORT)
    world.start_session(ids[1])
    return ids, long, large, short


def test_short_job_is_lent_what_a_large_one_waits_with(world: World) -> None:
    _, _, large, short = lend(world)
    (session,) = world.history(short.id).sessions
    assert (session.lent_by, session.limit_s, session.state) == (large.id, 100.0, SessionState.RUNNING)
    assert world.job(large.id).state is JobState.QUEUED


def test_lent_agents_go_back_when_the_large_job_can_start_earlier_than_was_known(world: World) -> None:
    ids, long, large, short = lend(world)
    world.cancel(long.id)
    (held,) = world.history(long.id).sessions
    world.keep_up()
    assert world.history(short.id).sessions[0].state is SessionState.RUNNING
    end(world, held.id, held.generation, ids[0])
    world.keep_up()
    (lent,) = world.history(short.id).sessions
    assert lent.state is SessionState.ENDING
    assert lent.reason == f"Its agents go back to job {large.id}, which came first."
    tiny = world.submit(name="tiny", budget=Budget(max_seconds=1))
    world.keep_up()
    assert world.history(tiny.id).sessions == ()
    end(world, lent.id, lent.generation, ids[1])
    world.poll(ids[0])
    world.poll(ids[1])
    world.keep_up()
    assert world.history(large.id).sessions[-1].agents == ("one", "two")
    assert world.job(short.id).state is JobState.RUNNING
    assert "1 job comes first" not in world.job(short.id).state_reason


def end(world: World, session_id: str, generation: int, agent_id: str) -> None:
    with world.work() as work:
        word = SessionEnd(generation=generation, outcome=Outcome.CANCELLED, reason="Asked to end.")
        sessions.leave_session(work, session_id, agent_id, word, world.now)


def pass_time(world: World, seconds: int, *places: tuple[Assignment, str]) -> None:
    """Let time pass in which agents beat."""
    for _ in range(seconds):
        world.wait(1)
        for place, agent_id in places:
            world.beat(place, agent_id)


def test_job_that_was_lent_agents_gets_no_others_before_the_one_that_lent_them(world: World) -> None:
    ids = [world.register("one"), world.register("two")]
    world.submit(name="long", budget=Budget(max_seconds=200))
    (place,) = world.start_session(ids[0])
    large = world.submit(name="large", nodes=2)
    short = world.submit(name="short", budget=SHORT)
    world.start_session(ids[1])
    (lent,) = world.history(short.id).sessions
    pass_time(world, 20, (place, ids[0]))
    end(world, lent.id, lent.generation, ids[1])
    pass_time(world, 100, (place, ids[0]))
    world.poll(ids[1])
    world.keep_up()
    assert len(world.history(short.id).sessions) == 1
    assert f"kept for job {large.id}" in world.job(short.id).state_reason


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


def test_many_jobs_on_few_agents_all_end_however_they_are_lent(world: World) -> None:
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
