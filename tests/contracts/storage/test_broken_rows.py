"""A row that cannot be read stops its own job and no other; a field that is not known is ignored."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from advisor.errors import UnreadableRecord
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.measured.trials import Purpose, SessionState, Trial
from advisor.protocol.views import JobQuery
from advisor.services.background.scheduling import Scheduler
from advisor.services.planning.decided import VersionedDecision, think
from advisor.services.planning.planner_queue import PlannerQueue
from advisor.services.timers import Timers
from advisor.storage import Database
from tests.unit.services.scripted_tuning import ScriptedTuning, make_node, make_spec
from tests.unit.services.world import World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RECORDED: dict[str, Any] = {
    "name": "of another version",
    "workload": {
        "kind": "pytorch", "command": ["torchrun", "train.py"], "working_dir": "/srv", "environment": {"A": "1"},
        "container": {"image": "x"},
    },
    "nodes": 2,
    "budget": {"max_trials": 3, "max_seconds": 60, "max_watts": 9},
    "measurement": {"block_s": 2, "unit": "furlong"},
    "testbed": {"nodes": 2, "rate": "1gbit", "jitter_s": 0.1},
    "urgency": {"class": "batch"},
}  # fmt: skip


@pytest.fixture
def tamper(database_url: str) -> Callable[..., None]:
    """Writes into the database what this server never would."""

    def write(statement: str, **values: Any) -> None:
        engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            connection.execute(text(statement), values)
        engine.dispose()

    return write


def _submit(database: Database, *names: str) -> None:
    for name in names:
        with database.begin() as work:
            work.jobs.add(Job(id=name, spec=make_spec(), state=JobState.QUEUED, created_at=NOW))


def _keep_up(database: Database) -> None:
    def plan(job_id: str) -> VersionedDecision:
        return think(database, ScriptedTuning(), job_id, NOW, Timers())

    Scheduler(database, PlannerQueue(plan, lambda run: run()), Timers()).look(NOW)


def test_fields_that_are_not_known_are_ignored_at_every_depth(
    database: Database, tamper: Callable[..., None]
) -> None:
    _submit(database, "j1")
    tamper("UPDATE jobs SET spec = :spec", spec=json.dumps(RECORDED))
    with database.read() as work:
        job = work.jobs.get("j1")
    assert job is not None
    assert job.spec.budget.max_trials == 3
    assert job.spec.testbed is not None
    assert job.spec.workload.environment == {"A": "1"}
    with pytest.raises(ValueError, match="container"):
        JobSpec.model_validate(RECORDED), "what people write is judged strictly"


def test_job_that_cannot_be_read_stops_no_other(
    database: Database, tamper: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    broken = f"{'sqlite' if database.is_sqlite else 'postgresql'}-broken"
    _submit(database, "j1", broken, "j3")
    spec = json.dumps({**RECORDED, "testbed": None, "knobs": ["warp_speed"]})
    tamper("UPDATE jobs SET spec = :spec WHERE id = :id", spec=spec, id=broken)
    with database.begin() as work:
        work.agents.add("a1", "node-1", make_node("node-1"), NOW)
    _keep_up(database)
    with database.read() as work:
        assert [job.id for _, job in work.jobs.page(JobQuery(), 10, None)] == ["j3", "j1"]
        assert len(work.sessions.of_job("j1")) == 1, "the keeper went on"
        with pytest.raises(UnreadableRecord, match="warp_speed"):
            work.jobs.get(broken)
    told = [record.message for record in caplog.records if f"jobs {broken} is left out" in record.message]
    assert len(told) == 1, "once, however often it is looked at"


def test_page_is_as_long_as_asked_for_where_jobs_cannot_be_read(
    database: Database, tamper: Callable[..., None]
) -> None:
    _submit(database, "j1", "j2", "j3", "j4", "j5")
    tamper("UPDATE jobs SET spec = '{}' WHERE id IN ('j4', 'j3')")
    with database.read() as work:
        assert [job.id for _, job in work.jobs.page(JobQuery(), 2, None)] == ["j5", "j2"]
        assert [job.id for _, job in work.jobs.page(JobQuery(), 9, None)] == ["j5", "j2", "j1"]


def test_history_that_cannot_be_read_makes_its_job_wait_with_a_sentence(
    database: Database, tamper: Callable[..., None]
) -> None:
    _submit(database, "j1", "j2")
    with database.begin() as work:
        work.agents.add("a1", "node-1", make_node("node-1"), NOW)
        work.trials.add("j1", Trial(number=0, purpose=Purpose.BASELINE, because="First.", created_at=NOW))
    tamper("UPDATE trials SET changes = '[1]' WHERE job_id = 'j1'")
    _keep_up(database)
    with database.read() as work:
        waiting = work.jobs.get("j1")
        assert waiting is not None
        assert "What is stored cannot be read" in waiting.state_reason
        assert len(work.sessions.of_job("j2")) == 1


def test_node_that_cannot_be_read_hides_no_other(database: Database, tamper: Callable[..., None]) -> None:
    with database.begin() as work:
        work.agents.add("a1", "node-1", make_node("node-1"), NOW)
        work.agents.add("a2", "node-2", make_node("node-2"), NOW)
    tamper("UPDATE agents SET node = :node WHERE id = 'a1'", node='{"hostname": "h"}')
    with database.read() as work:
        assert [agent.name for agent in work.agents.all()] == ["node-2"]


_BROKEN_BY = {
    "the job": "UPDATE jobs SET spec = '{}' WHERE id = :job",
    "the session": "UPDATE sessions SET cold = '[1]' WHERE job_id = :job",
    "a block": "UPDATE blocks SET plan = '{}' WHERE job_id = :job",
}


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A server without HTTP, with two agents at work for a job each."""
    world = World(database_url)
    yield world
    world.database.close()


def _race_alone(world: World, name: str) -> tuple[str, str]:
    agent = world.register(name)
    job = world.submit()
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    world.begin(place, agent)
    return job.id, agent


@pytest.mark.parametrize("what", _BROKEN_BY)
def test_session_of_which_something_cannot_be_read_is_given_up_with_the_reason(
    world: World, tamper: Callable[..., None], what: str
) -> None:
    broken, agent = _race_alone(world, "one")
    other, _ = _race_alone(world, "two")
    tamper(_BROKEN_BY[what], job=broken)
    world.reaper.look(world.now)
    world.wait(world.timers.lease_s + world.timers.grace_s + 60)
    assert world.reaper.look(world.now) == 2, "and it keeps nobody from losing the other one"
    with world.work() as work:
        assert [session.state for session in work.sessions.of_job(other)] == [SessionState.LOST]
        assert work.members.leases() == []
        assert work.members.live_of(agent) is None, "its agent is free"
        told = [event.sentence for event in work.events.after(broken, 0, 99) if event.session_id]
        assert "What is stored cannot be read" in told[-1]
        assert work.upkeep.find_damage() == []


def test_job_that_was_being_cancelled_is_cancelled_unread(world: World, tamper: Callable[..., None]) -> None:
    job, _ = _race_alone(world, "one")
    world.cancel(job)
    tamper("UPDATE jobs SET spec = '{}' WHERE id = :job", job=job)
    world.reaper.look(world.now)
    world.wait(world.timers.lease_s + world.timers.grace_s + 60)
    assert world.reaper.look(world.now) == 1
    with world.work() as work:
        assert work.connection.execute(text("SELECT state FROM jobs")).scalar_one() == "cancelled"
        assert work.upkeep.find_damage() == []
