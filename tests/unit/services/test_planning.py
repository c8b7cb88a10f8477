"""What the planner may cost: a deadline for suggestions, leases that go on meanwhile, and what earlier jobs found."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from advisor.protocol.answers.advice import Interval, Verdict
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.base import Value
from advisor.protocol.measured.messages import HelloReport
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import EventFacts
from advisor.services import jobs
from advisor.services.measuring import sessions
from advisor.services.planning import decided as deciding
from advisor.tuning.decisions import Decision
from tests.unit.services.scripted_tuning import ScriptedTuning, make_facts
from tests.unit.services.world import World


class Pondering(ScriptedTuning):
    """Takes as long over a strategy as `let_go` stays unset; its quick answers come at once."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.begun = threading.Event()
        self.asked: list[bool] = []

    def plan(self, job: Job, history: JobHistory, now: Any, *rest: Any, quick: bool = False) -> Decision:
        """Ponder over everything that is asked of a live session."""
        if history.live_session() is not None:
            self.asked.append(quick)
            if not quick:
                self.begun.set()
                self.let_go.wait(30)
        return super().plan(job, history, now)


@pytest.fixture
def pondering(world: World) -> Iterator[Pondering]:
    tuning = Pondering()
    world.tuning = tuning
    yield tuning
    tuning.let_go.set()


def sentences(world: World, job_id: str) -> str:
    with world.database.read() as work:
        return "\n".join(event.sentence for event in jobs.list_events(work, job_id, 0, 1000))


def test_suggestion_that_takes_too_long_gives_way_to_a_quick_one_and_an_event(
    world: World, pondering: Pondering
) -> None:
    world.timers = replace(world.timers, think_s=0.05)
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.measure(place, agent) == [{}]
    assert "was not found within 0.05 s" in sentences(world, job.id)
    assert pondering.asked == [False, True]


def test_planner_that_still_ponders_is_not_asked_to_ponder_twice(world: World, pondering: Pondering) -> None:
    world.timers = replace(world.timers, think_s=0.05)
    world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    world.measure(place, agent)
    assert pondering.asked == [False, True, True]
    pondering.let_go.set()
    for thread in list(world.overdue.values()):
        thread.join(10)
    assert world.next(place, agent).end_because
    assert pondering.asked[-1] is False


def test_lease_is_renewed_while_a_suggestion_is_looked_for(world: World, pondering: Pondering) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(world.next(place, agent)))
    asking.start()
    assert pondering.begun.wait(10)
    for _ in range(10):
        world.wait(10)
        world.beat(place, agent)
        world.keep_up()
    assert not world.history(job.id).sessions[0].state.is_final
    assert answers == []
    pondering.let_go.set()
    asking.join(10)
    assert answers[0].race is not None


def finish_with(world: World, job_id: str, changes: dict[str, Value], ratio: float) -> None:
    """Let a job have ended with the advice to change."""
    gain = Interval(ratio=ratio, low=ratio - 0.01, high=ratio + 0.01, rounds=8, sessions=2)
    job, history = world.job(job_id), world.history(job_id)
    advice = ScriptedTuning().advise(job, history, world.now)
    with world.work() as work:
        updated = {"verdict": Verdict.CHANGE, "changes": changes, "gain": gain}
        work.advice.put(advice.model_copy(update=updated), world.now)
        since = (JobState.QUEUED, JobState.RUNNING)
        work.jobs.move(job_id, JobState.FINISHED, "Done.", since=since, now=world.now)


def begin(world: World, name: str) -> str:
    """A job whose script was seen; its session is over again."""
    job = world.submit(name=name)
    agent = world.register("one")
    (place,) = world.start_session(agent)
    hello = HelloReport(generation=place.generation, facts=make_facts(), baseline={})
    with world.work() as work:
        sessions.hear_hello(work, place.session_id, agent, hello, world.now)
    world.next(place, agent)
    world.end(place, agent)
    return job.id


def test_similar_jobs_are_looked_for_once_and_a_restart_changes_nothing(world: World) -> None:
    first = begin(world, "first")
    assert world.history(first).earlier == ()
    finish_with(world, first, {"num_threads": 2}, 1.2)
    second = begin(world, "second")
    (earlier,) = world.history(second).earlier
    assert (earlier.job_id, earlier.changes, earlier.ratio) == (
        first,
        {"num_threads": 2},
        pytest.approx(1.19),
    )
    assert "1 similar earlier job" in sentences(world, second)
    with world.database.read() as work:
        assert EventFacts(earlier=(first,)) in work.events.facts_of(second)
    third = begin(world, "third")
    finish_with(world, third, {"num_threads": 1}, 1.5)
    world.restart()
    deciding.think(world.database, world.tuning, second, world.now)
    assert world.history(second).earlier == (earlier,)
    assert sentences(world, second).count("similar earlier job") == 1


def test_jobs_that_are_not_alike_are_not_looked_at_again(world: World) -> None:
    job_id = begin(world, "alone")
    with world.database.read() as work:
        assert work.jobs.earlier(job_id) == ()
    assert "similar" not in sentences(world, job_id)
