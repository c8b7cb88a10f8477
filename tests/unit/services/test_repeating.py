"""Asking for another race of a trial: what is told, who may, and when it would be of no use."""

from datetime import timedelta

import pytest

from advisor.errors import JobIsFinal, NotFound, NotRepeatable, NotYourJob
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.views import Role
from advisor.services import jobs
from advisor.services.tokens import Principal
from tests.unit.services.world import World

EVE = Principal("eve", Role.SUBMITTER, "eve")


def measure(world: World) -> Job:
    """A job in its search: the baseline and one strategy are measured."""
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    for _ in range(2):
        world.measure(place, agent)
    world.now += timedelta(seconds=1)
    return world.job(job.id)


def test_asking_is_told_once_and_noted_with_the_trial(world: World) -> None:
    job = measure(world)
    asked = world.repeat(job.id, 1)
    assert asked.version > job.version
    history = world.history(job.id)
    assert history.trial(1).asked_again_at == world.now
    assert history.trial(1).outcome is Outcome.FINISHED
    assert history.awaits_repeat(history.trial(1))
    world.now += timedelta(seconds=1)
    assert world.repeat(job.id, 1).version == asked.version
    with world.work() as work:
        events = jobs.list_events(work, job.id, 0, 1000)
    told = [event.sentence for event in events if "another race" in event.sentence]
    assert told == ["ada asked for another race of trial 1."]


def test_race_that_would_be_of_no_use_is_refused_with_the_reason(world: World) -> None:
    job = measure(world)
    with pytest.raises(NotRepeatable, match="baseline takes part in every race"):
        world.repeat(job.id, 0)
    with pytest.raises(NotFound, match="no trial 7"):
        world.repeat(job.id, 7)
    with pytest.raises(NotYourJob):
        world.repeat(job.id, 1, EVE)
    with world.work() as work:
        work.trials.close(job.id, 1, Outcome.CRASHED, "It died.", world.now)
    with pytest.raises(NotRepeatable, match="Trial 1 crashed"):
        world.repeat(job.id, 1)
    world.cancel(job.id)
    with pytest.raises(JobIsFinal):
        world.repeat(job.id, 1)
    assert world.history(job.id).trial(1).asked_again_at is None
