"""What is counted for whoever watches the service, on SQLite and on PostgreSQL alike."""

from datetime import UTC, datetime, timedelta

from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.trials import Session, SessionState
from advisor.storage import Database
from tests.unit.services.scripted_tuning import make_node, make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = NOW - timedelta(seconds=60)


def test_census_of_nothing_counts_every_state_as_none(database: Database) -> None:
    with database.read() as work:
        census = work.counts.take(BEFORE)
    assert census.jobs == {str(state): 0 for state in JobState}
    assert census.agents == {"idle": 0, "busy": 0, "silent": 0, "revoked": 0}
    assert census.sessions == {"assembling": 0, "running": 0, "ending": 0}
    assert census.members == {"preparing": 0, "ready": 0, "running": 0, "gone": 0}


def test_census_counts_each_in_the_state_it_is_in(database: Database) -> None:
    with database.begin() as work:
        for number, state in enumerate([JobState.QUEUED, JobState.RUNNING, JobState.RUNNING]):
            work.jobs.add(Job(id=f"j{number}", spec=make_spec(), state=state, created_at=NOW))
        for name in ("idle", "busy", "late", "silent", "revoked"):
            work.agents.add(name, name, make_node(name), BEFORE - timedelta(seconds=name == "silent"))
        work.agents.turn_out("revoked", NOW)
        for job_id, state, agent in (
            ("j1", SessionState.RUNNING, "busy"),
            ("j2", SessionState.ASSEMBLING, "late"),
        ):
            session = Session(id=agent, job_id=job_id, generation=1, state=state, created_at=NOW)
            work.sessions.add(session)
            work.members.add(agent, agent, 0)
    with database.read() as work:
        census = work.counts.take(BEFORE)
    assert {state: count for state, count in census.jobs.items() if count} == {"queued": 1, "running": 2}
    assert census.agents == {"idle": 1, "busy": 2, "silent": 1, "revoked": 1}
    assert census.sessions == {"assembling": 1, "running": 1, "ending": 0}
    assert census.members["preparing"] == 2
