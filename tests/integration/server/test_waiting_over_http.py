"""What agents that wait, and sessions that ask for their next race, cost a real server."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import JobHistory, SessionState
from advisor.tuning.decisions import Decision
from tests.integration.server.served import FakeAgent, Served, start_gang, wait_for
from tests.unit.services.scripted_tuning import ScriptedTuning


@contextmanager
def statements_about(table: str) -> Iterator[list[str]]:
    """Collect the statements that look one agent up in a table."""
    seen: list[str] = []

    def listen(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if f"FROM {table}" in statement and f"{table}.agent_id = " in statement:
            seen.append(statement)

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", listen)


def test_agents_that_wait_do_not_look_into_the_database_one_by_one(start: Callable[..., Served]) -> None:
    server = start(poll_s=1.0, look_s=0.01)
    agents = [FakeAgent(server, f"agent {number}") for number in range(4)]
    with statements_about("members") as seen, ThreadPoolExecutor(len(agents)) as pool:
        assert list(pool.map(FakeAgent.poll, agents)) == [None] * len(agents)
    assert len(seen) <= 4 * len(agents)


def test_agent_that_waits_is_called_when_its_gang_is_formed(start: Callable[..., Served]) -> None:
    server = start(poll_s=30.0, look_s=5.0)
    agent = FakeAgent(server, "one")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.poll)
        job = server.submit()
        place = waiting.result()
    assert place is not None
    assert place.job_id == job.id


class Recording(ScriptedTuning):
    """Remembers how often it was asked, with how many blocks measured."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def plan(self, job: Job, history: JobHistory, now: Any, *, quick: bool = False) -> Decision:
        """Remember, and decide as always."""
        decision = super().plan(job, history, now, quick=quick)
        self.asked.append(len(history.blocks))
        return decision


def test_next_race_is_thought_of_as_soon_as_a_report_is_accepted(start: Callable[..., Served]) -> None:
    tuning = Recording()
    server = start(tuning=tuning)
    job = server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    race = agent.next()["race"]
    assert agent.report(race).status_code == 200
    wait_for(lambda: 1 in tuning.asked or None, "a thought about the next race")
    planner_queue = server.app.state.context.planner_queue
    wait_for(
        lambda: planner_queue.find(job.id, server.job(job.id).version),
        "the decision in the queue",
    )
    assert agent.next()["race"] is not None
    assert tuning.asked.count(1) == 1


class Stuck(ScriptedTuning):
    """Thinks about the second job until it is let go, and about all others as always."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go, self.begun = threading.Event(), threading.Event()

    def plan(self, job: Job, *rest: Any, **more: Any) -> Decision:
        """Ponder over the second job, whether a quick answer is asked for or not."""
        if job.spec.name == "second":
            self.begun.set()
            self.let_go.wait(60)
        return super().plan(job, *rest, **more)


def test_session_is_given_up_while_the_planner_thinks_about_another_job(start: Callable[..., Served]) -> None:
    tuning = Stuck()
    server = start(tuning=tuning, lease_s=0.3, grace_s=0.1)
    job = server.submit(name="first")
    start_gang(FakeAgent(server, "silent"))
    server.submit(name="second")
    FakeAgent(server, "idle").poll()
    assert tuning.begun.wait(10)
    try:
        wait_for(
            lambda: server.history(job.id).sessions[0].state is SessionState.LOST or None,
            "the silent agent's session is given up",
        )
    finally:
        tuning.let_go.set()
