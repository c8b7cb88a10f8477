"""A job that has ended is given more budget: what it keeps, what it measures next, and what is refused."""

import pytest

from advisor.errors import (
    AdviceNotReady,
    IdempotencyConflict,
    InvalidJob,
    JobIsLive,
    JobNotFound,
    NothingToContinue,
)
from advisor.protocol.asked.jobs import Budget, Continuation, Job, JobState, Stage
from advisor.protocol.measured.messages import Trouble
from advisor.protocol.measured.trials import Outcome
from advisor.services import jobs
from advisor.services.answers import advice
from advisor.services.changing import continuing
from advisor.services.measuring import sessions
from tests.unit.services.scripted_tuning import ScriptedTuning
from tests.unit.services.world import ADA, World

MORE = Continuation(more_seconds=300)


def finish(world: World, **fields: object) -> tuple[Job, str]:
    """Let a job measure everything and finish; return it and its agent."""
    job = world.submit(**fields)
    agent = world.register("one")
    (place,) = world.start_session(agent)
    while world.next(place, agent).race is not None:
        world.measure(place, agent)
    world.end(place, agent)
    world.keep_up()
    assert world.job(job.id).state is JobState.FINISHED
    return job, agent


def extend(world: World, job_id: str, more: Continuation = MORE, key: str | None = None) -> Job:
    world.wait(1)
    with world.work() as work:
        return continuing.continue_job(work, job_id, more, ADA, key, world.now)


def tell_story(world: World, job_id: str) -> str:
    with world.database.read() as work:
        return "\n".join(event.sentence for event in jobs.list_events(work, job_id, 0, 1000))


def test_finished_job_is_queued_again_with_a_larger_budget_and_all_it_measured(world: World) -> None:
    job, _ = finish(world, budget=Budget(max_seconds=180, max_trials=10))
    before = world.history(job.id)
    continued = extend(world, job.id, Continuation(more_seconds=300, more_trials=6))
    assert (continued.state, continued.finished_at) == (JobState.QUEUED, None)
    assert continued.spec.budget == Budget(max_seconds=480, max_trials=16)
    assert continued.continued_at == (world.now,)
    assert continued.started_at == world.job(job.id).started_at is not None
    assert world.history(job.id) == before
    assert "ada gave the job 5 minutes and 6 strategies more: the job goes on" in tell_story(world, job.id)


def test_continued_job_goes_on_where_it_stood_and_its_new_advice_takes_the_old_ones_place(
    world: World,
) -> None:
    job, agent = finish(world)
    with world.database.read() as work:
        first = advice.get_advice(work, job.id)
    extend(world, job.id)
    with world.database.read() as work, pytest.raises(AdviceNotReady):
        advice.get_advice(work, job.id)
    world.tuning = ScriptedTuning([{"fuse_grad_size_in_MB": 8.0}, {"fuse_grad_size_in_MB": 4.0}])
    world.poll(agent)
    (place,) = world.start_session(agent)
    assert world.measure(place, agent) == [{"fuse_grad_size_in_MB": 4.0}]
    assert world.next(place, agent).end_because
    world.end(place, agent)
    world.keep_up()
    finished = world.job(job.id)
    assert (finished.state, finished.stage) == (JobState.FINISHED, Stage.DONE)
    assert [session.generation for session in world.history(job.id).sessions] == [1, 2]
    with world.database.read() as work:
        second = advice.get_advice(work, job.id)
    assert (first.cost.trials, second.cost.trials) == (2, 3)


def test_job_can_be_continued_again_and_again(world: World) -> None:
    job, _ = finish(world, budget=Budget(max_seconds=100))
    for times in (1, 2):
        extend(world, job.id)
        world.keep_up()
        again = world.job(job.id)
        assert again.state is JobState.FINISHED
        assert len(again.continued_at) == times
    assert again.spec.budget.max_seconds == 700


def test_device_hours_grow_with_the_seconds(world: World) -> None:
    job, _ = finish(world, budget=Budget(max_seconds=100, max_device_hours=0.5))
    assert extend(world, job.id).spec.budget.max_device_hours == 2.0


def test_cancelled_job_that_measured_something_is_continued(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    world.cancel(job.id)
    with pytest.raises(JobIsLive, match="is being cancelled"):
        extend(world, job.id)
    world.end(place, agent, Outcome.CANCELLED)
    assert extend(world, job.id).state is JobState.QUEUED
    world.poll(agent)
    (place,) = world.start_session(agent)
    assert world.measure(place, agent) == [{"fuse_grad_size_in_MB": 8.0}]


def test_trouble_that_failed_a_job_does_not_fail_it_at_once_when_it_is_continued(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    trouble = Trouble(code="no_ddp", sentence="The disk is full.")
    with world.work() as work:
        sessions.hear_trouble(work, place.session_id, agent, trouble, world.now)
    world.end(place, agent, Outcome.CRASHED)
    world.keep_up()
    assert world.job(job.id).state is JobState.FAILED
    extend(world, job.id)
    world.poll(agent)
    world.keep_up()
    assert world.job(job.id).state is JobState.RUNNING


def test_what_was_said_before_still_holds_when_a_continued_job_is_cancelled(world: World) -> None:
    job, _ = finish(world)
    extend(world, job.id)
    assert world.cancel(job.id).state is JobState.CANCELLED
    with world.database.read() as work:
        assert advice.get_advice(work, job.id).job_id == job.id


def test_job_that_has_not_ended_or_measured_nothing_is_refused(world: World) -> None:
    job = world.submit()
    with pytest.raises(JobIsLive, match="queued"):
        extend(world, job.id)
    world.cancel(job.id)
    with pytest.raises(NothingToContinue, match="before it had measured anything"):
        extend(world, job.id)
    with pytest.raises(JobNotFound):
        extend(world, "none")
    assert world.job(job.id).continued_at == ()


def test_budget_beyond_what_a_job_may_have_is_refused_and_changes_nothing(world: World) -> None:
    job, _ = finish(world)
    with pytest.raises(InvalidJob, match="30 days"):
        extend(world, job.id, Continuation(more_seconds=1e9))
    assert world.job(job.id).state is JobState.FINISHED


def test_same_key_continues_once_and_belongs_to_one_request(world: World) -> None:
    job, _ = finish(world)
    first = extend(world, job.id, key="once")
    assert extend(world, job.id, key="once").spec == first.spec
    assert len(world.job(job.id).continued_at) == 1
    with pytest.raises(IdempotencyConflict):
        extend(world, job.id, Continuation(more_seconds=1), key="once")
