"""A paused job starts nothing new and loses nothing; a resumed one goes on where it stood."""

from datetime import datetime

import pytest

from advisor.errors import JobIsFinal
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.trials import BlockState, JobHistory, Outcome, SessionState
from advisor.services.measuring.races import Accepted
from advisor.tuning.decisions import Decision, Race
from tests.unit.services.scripted_tuning import ScriptedTuning
from tests.unit.services.world import World


def test_paused_job_gets_no_session_until_it_is_resumed(world: World) -> None:
    job = world.submit()
    world.register("one")
    paused = world.pause(job.id)
    assert paused.state is JobState.PAUSED
    assert "Paused by ada" in paused.state_reason
    world.keep_up()
    assert world.history(job.id).sessions == ()
    assert world.job(job.id).version == paused.version
    assert world.resume(job.id).state is JobState.QUEUED
    world.keep_up()
    assert len(world.history(job.id).sessions) == 1


def test_race_in_flight_is_measured_to_its_end_and_the_job_goes_on_behind_it(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    race = world.begin(place, agent)
    assert world.pause(job.id).state is JobState.PAUSED
    assert world.beat(place, agent).state is SessionState.RUNNING
    assert world.next(place, agent).race == race
    assert isinstance(world.report(place, agent, race), Accepted)
    assert world.next(place, agent).end_because == "The job was paused."
    world.end(place, agent)
    world.keep_up()
    history = world.history(job.id)
    assert [block.state for block in history.blocks] == [BlockState.DONE]
    assert [session.outcome for session in history.sessions] == [Outcome.FINISHED]
    assert world.job(job.id).state is JobState.PAUSED
    world.resume(job.id)
    (place,) = world.start_session(agent)
    assert world.measure(place, agent) == [{"fuse_grad_size_in_MB": 8.0}]
    world.next(place, agent)
    world.end(place, agent)
    world.keep_up()
    assert world.job(job.id).state is JobState.FINISHED


def test_what_was_planned_before_the_pause_is_not_carried_out_after_it(world: World) -> None:
    class PausedMeanwhile(ScriptedTuning):
        def plan(self, job: Job, history: JobHistory, now: datetime, *, quick: bool = False) -> Decision:
            decision = super().plan(job, history, now, quick=quick)
            if isinstance(decision, Race):
                world.pause(job.id)
            return decision

    world.tuning = PausedMeanwhile()
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.next(place, agent).end_because == "The job was paused."
    assert world.history(job.id).blocks == ()


def test_session_whose_ranks_have_not_started_ends_at_once(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    world.keep_up()
    world.pause(job.id)
    assert world.poll(agent) is None
    assert world.history(job.id).live_session() is None
    assert world.job(job.id).state is JobState.PAUSED


def test_job_that_is_resumed_while_it_measures_goes_on_in_its_session(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    race = world.begin(place, agent)
    world.pause(job.id)
    assert world.resume(job.id).state is JobState.RUNNING
    world.report(place, agent, race)
    assert world.next(place, agent).race is not None
    assert len(world.history(job.id).sessions) == 1


def test_other_jobs_take_the_agents_of_a_paused_one(world: World) -> None:
    first, second = world.submit(), world.submit()
    world.register("one")
    world.pause(first.id)
    world.keep_up()
    assert (len(world.history(first.id).sessions), len(world.history(second.id).sessions)) == (0, 1)


def test_pausing_and_resuming_twice_changes_nothing(world: World) -> None:
    job = world.submit()
    assert world.resume(job.id) == job
    paused = world.pause(job.id)
    assert world.pause(job.id) == paused
    resumed = world.resume(job.id)
    assert world.resume(job.id) == resumed


def test_paused_job_can_be_cancelled_with_and_without_a_session(world: World) -> None:
    agent = world.register("one")
    job = world.submit()
    (place,) = world.start_session(agent)
    world.begin(place, agent)
    world.pause(job.id)
    assert world.cancel(job.id).state is JobState.CANCELLING
    with pytest.raises(JobIsFinal):
        world.resume(job.id)
    world.end(place, agent, Outcome.CANCELLED)
    assert world.job(job.id).state is JobState.CANCELLED
    other = world.submit()
    world.pause(other.id)
    assert world.cancel(other.id).state is JobState.CANCELLED
    for change in (world.pause, world.resume):
        with pytest.raises(JobIsFinal, match="cancelled already"):
            change(other.id)
