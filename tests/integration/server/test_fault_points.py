"""A server that fails or dies in any of its kill windows: who repeats what was not answered gets it, once."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.trials import BlockState, SessionState
from advisor.protocol.training.workload import WITH_SECRETS
from advisor.services.timers import Timers
from advisor.settings import Settings
from advisor.storage import Database
from advisor.storage.fault_points import FaultPoint, Side
from tests.integration.server.served import FakeAgent, start_gang, wait_for
from tests.integration.server.struck import DEATH, Blow, StruckServer, make_tuning
from tests.unit.services.scripted_tuning import make_spec

RUN = "0123456789abcdef"
KEYS = itertools.count()


def submit(server: StruckServer, **fields: object) -> Job:
    """Submit a job as the command line does: with a key, so that repeating it is safe."""
    spec = make_spec(**fields).model_dump(mode="json", context=WITH_SECRETS)
    reply = server.ask("POST", "/jobs", json=spec, headers={"Idempotency-Key": f"key {next(KEYS)}"})
    assert reply.status_code == 201, reply.text
    return Job.model_validate(reply.json())


def take_part(server: StruckServer, name: str = "one") -> FakeAgent:
    """An agent with a secret, in a session that runs."""
    agent = FakeAgent(server, name, "a secret of thirty-two characters")
    start_gang(agent)
    return agent


def finish(agent: FakeAgent, job: Job) -> Job:
    """Measure what there is to measure, until the job has finished."""
    agent.measure_all()
    assert agent.end().status_code == 204
    return agent.server.await_state(job.id, JobState.FINISHED)


def carry_a_job_to_its_end(server: StruckServer) -> None:
    """Nothing is measured twice, and nothing is forgotten."""
    job = submit(server)
    agent = take_part(server)
    agent.hello()
    finish(agent, job)
    history = server.history(job.id)
    assert [block.state for block in history.blocks] == [BlockState.DONE] * 3
    assert [trial.number for trial in history.trials] == [0, 1]
    assert [session.state for session in history.sessions] == [SessionState.ENDED]
    assert server.ask("GET", f"/jobs/{job.id}/advice").status_code == 200
    assert server.job(job.id).facts is not None
    log = server.ask("GET", f"/jobs/{job.id}/logs").json()["items"]
    assert "".join(part["text"] for part in log).splitlines() == agent.told


def cancel(server: StruckServer) -> None:
    """A job that nobody measures ends at once."""
    job = submit(server)
    server.ask("POST", f"/jobs/{job.id}:cancel")
    wait_for(lambda: is_struck(server) or None, "it was struck")
    server.await_state(job.id, JobState.CANCELLED)


def is_struck(server: StruckServer) -> bool:
    is_marked = (server.settings.data_dir / f"struck {FaultPoint.JOB_CANCELLED}").exists()
    # One that was marked before has died by the time that somebody asks, and its death is noted.
    server.ask("GET", "/jobs")
    return is_marked


def hand_in_something_else(server: StruckServer) -> None:
    """The first report counts; the other one is kept beside it, with the same answer however often it comes."""
    job = submit(server)
    agent = take_part(server)
    race = agent.next()["race"]
    assert agent.report(race, 0.1).status_code == 200
    for _ in range(2):
        assert agent.report(race, 0.2).json()["code"] == "result_differs"
    assert agent.report(race, 0.1).status_code == 200
    finish(agent, job)
    assert {block.result.step_time_s[0] for block in server.history(job.id).blocks if block.result} == {0.1}


def fall_silent(server: StruckServer) -> None:
    """The session is lost and its race given up; what the agent still hands in is kept, and another one measures."""
    job = submit(server)
    agent = take_part(server)
    race = agent.next()["race"]
    server.start_again(Timers(lease_s=0.01, grace_s=0.01, restart_s=0.01))
    wait_for(lambda: server.history(job.id).sessions[0].state is SessionState.LOST or None, "it is lost")
    server.start_again()
    assert agent.report(race).json()["code"] == "result_quarantined"
    finish(take_part(server), job)
    states = [session.state for session in server.history(job.id).sessions]
    assert states == [SessionState.LOST] * (len(states) - 1) + [SessionState.ENDED]


def be_in_trouble(server: StruckServer) -> None:
    """A script that cannot be tuned: the job fails with the sentence that the agent gave."""
    job = submit(server)
    agent = take_part(server)
    assert agent.say("trouble", code="no_ddp", sentence="It never wraps a model.").status_code == 204
    agent.end("crashed")
    failed = server.await_state(job.id, JobState.FAILED)
    assert "It never wraps a model." in failed.state_reason
    assert len(server.history(job.id).sessions) == 1


def do_everything_to_a_job(server: StruckServer) -> None:
    """Whatever its owner asks for happens, once."""
    job = submit(server)
    path = f"/jobs/{job.id}"
    assert server.ask("POST", f"{path}:pause").json()["state"] == "paused"
    assert server.ask("POST", f"{path}:resume").json()["state"] in {"queued", "running"}
    low = server.ask("POST", f"{path}:prioritise", json={"priority": "low"})
    assert low.json()["spec"]["priority"] == "low"
    agent = take_part(server)
    agent.hello()
    for _ in range(2):
        agent.report(agent.next()["race"])
    assert server.ask("POST", f"{path}/trials/1:repeat").status_code == 200
    finish(agent, job)
    report = {"host": "node", "ranks": 2, "step": 5, "step_s": 0.1, "samples_per_s": 9.0, "event": "below"}
    assert server.ask("PUT", f"{path}/runs/{RUN}", json=report | {"sentence": "Slow."}).status_code == 200
    events = server.ask("GET", f"{path}/events", params={"limit": 500}).json()["items"]
    assert len([event for event in events if event["kind"] == "production"]) == 1
    assert len([event for event in events if "another race of trial 1" in event["sentence"]]) == 1
    assert len([event for event in events if "priority low" in event["sentence"]]) == 1
    more = {"more_seconds": 60.0, "more_trials": 1}
    reply = server.ask("POST", f"{path}:extend", json=more, headers={"Idempotency-Key": "more"})
    assert reply.status_code == 200, reply.text
    assert len(server.job(job.id).continued_at) == 1
    assert server.job(job.id).spec.budget.max_seconds == job.spec.budget.max_seconds + 60.0
    server.await_state(job.id, JobState.FINISHED)
    assert server.ask("POST", f"{path}:archive").status_code == 200
    # Whoever repeats it is told that there is no such job.
    assert server.ask("DELETE", path).status_code in {204, 404}
    assert server.ask("GET", path).status_code == 404
    server.told["accepted"].clear()


STORIES: dict[FaultPoint, Callable[[StruckServer], None]] = {
    FaultPoint.TOKEN_MADE: carry_a_job_to_its_end,
    FaultPoint.AGENT_REGISTERED: carry_a_job_to_its_end,
    FaultPoint.AGENTS_SEEN: carry_a_job_to_its_end,
    FaultPoint.JOB_SUBMITTED: carry_a_job_to_its_end,
    FaultPoint.JOB_ENDED: carry_a_job_to_its_end,
    FaultPoint.EARLIER_CHOSEN: carry_a_job_to_its_end,
    FaultPoint.LEASE_GIVEN: carry_a_job_to_its_end,
    FaultPoint.LEASE_RENEWED: carry_a_job_to_its_end,
    FaultPoint.SESSION_STARTED: carry_a_job_to_its_end,
    FaultPoint.SCRIPT_SEEN: carry_a_job_to_its_end,
    FaultPoint.RACE_ISSUED: carry_a_job_to_its_end,
    FaultPoint.RESULT_ACCEPTED: carry_a_job_to_its_end,
    FaultPoint.SESSION_ENDING: carry_a_job_to_its_end,
    FaultPoint.SESSION_ENDED: carry_a_job_to_its_end,
    FaultPoint.RESULT_QUARANTINED: hand_in_something_else,
    FaultPoint.SESSION_LOST: fall_silent,
    FaultPoint.TROUBLE_NOTED: be_in_trouble,
    FaultPoint.JOB_PAUSED: do_everything_to_a_job,
    FaultPoint.JOB_RESUMED: do_everything_to_a_job,
    FaultPoint.JOB_PRIORITISED: do_everything_to_a_job,
    FaultPoint.TRIAL_REPEATED: do_everything_to_a_job,
    FaultPoint.JOB_CANCELLED: cancel,
    FaultPoint.JOB_CONTINUED: do_everything_to_a_job,
    FaultPoint.JOB_ARCHIVED: do_everything_to_a_job,
    FaultPoint.JOB_DELETED: do_everything_to_a_job,
    FaultPoint.RUN_REPORTED: do_everything_to_a_job,
}
"""What is played while a point is struck. Migrations: tests/contracts/storage/test_migrations.py."""
BLOWS = [
    *(pytest.param("sqlite", side, False, id=f"sqlite-fails-{side.value}") for side in Side),
    *(pytest.param("sqlite", side, True, id=f"sqlite-dies-{side.value}") for side in Side),
    pytest.param("postgresql", Side.AFTER, True, id="postgresql-dies-after"),
]
"""Transactions that fail on PostgreSQL: tests/unit/services/test_invariants.py."""


def find_wrong(server: StruckServer) -> list[str]:
    """What breaks a rule in the database that a server has left."""
    database = Database(server.settings.url, lambda: "unused")
    with database.read() as work:
        wrong = work.upkeep.find_damage() + work.upkeep.find_lost(**server.told)
    database.close()
    return wrong


def list_points(story: Callable[[StruckServer], None]) -> frozenset[FaultPoint]:
    return frozenset(point for point in STORIES if STORIES[point] is story)


def test_every_point_has_a_story() -> None:
    assert {*STORIES, FaultPoint.MIGRATED} == {*FaultPoint}


@pytest.mark.parametrize("story", dict.fromkeys(STORIES.values()), ids=lambda story: story.__name__)
@pytest.mark.parametrize(("database_url", "side", "deadly"), BLOWS, indirect=["database_url"])
def test_server_is_struck(
    database_url: str,
    tmp_path: Path,
    story: Callable[[StruckServer], None],
    side: Side,
    deadly: bool,
) -> None:
    """At each point of the story, one after the other, and what was not answered is repeated.

    A transaction that is struck at one point may not come to its next one: then the story is told again.
    """
    blow = Blow(list_points(story), side, deadly, tmp_path)
    settings = Settings(
        data_dir=tmp_path,
        database_url=database_url,
        poll_s=0.2,
        look_s=0.05,
        tick_s=0.05,
    )
    server = StruckServer(settings, blow.strike, make_tuning())
    try:
        while blow.struck != blow.points:
            before = blow.struck
            story(server)
            assert blow.struck > before
    finally:
        server.close()
    if deadly:
        # One death may come from two threads at a point each.
        assert set(server.deaths) == {DEATH}
        assert len(server.deaths) <= len(blow.points)
    else:
        # A server that fails while it starts ends as well.
        assert len(server.deaths) == (FaultPoint.TOKEN_MADE in blow.points)
    assert find_wrong(server) == []
