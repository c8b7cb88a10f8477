"""What is taken away when it is old, what stays, and what is found when a database does not fit together."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from advisor.protocol.jobs import JobState
from advisor.protocol.telemetry import TelemetrySample
from advisor.protocol.trials import Outcome, Purpose, SessionState, Trial
from advisor.protocol.views import Role
from advisor.storage import Database
from advisor.storage.upkeep import Ages
from tests.contracts.storage.test_storage import NOW, add_running_session, make_block
from tests.unit.services.scripted_tuning import make_node, make_result

YEAR = timedelta(days=365)


def prune(database: Database, before: datetime) -> dict[str, int]:
    with database.begin() as work:
        return work.upkeep.prune(Ages(before, before, before, before, before))


def find_damage(database: Database) -> list[str]:
    with database.read() as work:
        return work.upkeep.find_damage()


@pytest.fixture
def ended(database: Database) -> Database:
    """A job that has ended, with something of every kind of record."""
    with database.begin() as work:
        add_running_session(work)
        work.trials.add("j1", Trial(number=0, purpose=Purpose.BASELINE, because="", created_at=NOW))
        block = make_block()
        work.blocks.issue("j1", block)
        work.blocks.accept(block, 1, make_result(), None, "sha", NOW)
        work.blocks.quarantine("s1", "b1", "a1", 1, make_result(), "sha2", "It came late.", NOW)
        work.logs.append("j1", "s1", "one", "a line")
        work.telemetry.add("s1", "a1", [(1.0, TelemetrySample(age_s=0.0, cpu=0.5))])
        work.jobs.remember_submission("ada", "key", "sha", "j1", NOW)
        work.agents.add("a2", "gone", make_node("gone"), NOW)
        work.tokens.add("t2", Role.AGENT, "gone", "sha", NOW, "a2")
        work.tokens.add("t3", Role.VIEWER, "", "sha", NOW)
        work.tokens.revoke("t3", NOW)
        work.members.leave("s1", "a1", Outcome.FINISHED, "")
        ended = {"log_tail": "", "total_steps": 5, "now": NOW}
        work.sessions.close("s1", 1, SessionState.ENDED, Outcome.FINISHED, "", **ended)  # type: ignore[arg-type]
        work.members.release("s1")
        work.trials.close("j1", 0, Outcome.FINISHED, "", NOW)
        work.jobs.move("j1", JobState.FINISHED, "Done.", since=(JobState.RUNNING,), now=NOW)
    return database


def test_old_records_go_and_what_a_job_found_stays(ended: Database) -> None:
    assert prune(ended, NOW + YEAR) == {
        "telemetry samples": 1,
        "quarantined results": 1,
        "revoked tokens and keys of submissions": 2,
        "agents that never measured, and their tokens": 2,
        "chunks of log": 1,
    }
    with ended.read() as work:
        assert work.jobs.get("j1") is not None
        assert [block.result for block in work.blocks.of_job("j1")] == [make_result()]
        assert [agent.name for agent in work.agents.all()] == ["one"]
        assert work.logs.after("j1", 0, 10) == []
    assert find_damage(ended) == []
    assert set(prune(ended, NOW + YEAR).values()) == {0}


def test_records_that_are_not_old_stay(ended: Database) -> None:
    assert set(prune(ended, NOW - YEAR).values()) == {0}


def test_records_of_jobs_that_have_not_ended_stay_however_old(database: Database) -> None:
    with database.begin() as work:
        add_running_session(work)
        work.logs.append("j1", "s1", "one", "a line")
        work.telemetry.add("s1", "a1", [(1.0, TelemetrySample(age_s=0.0, cpu=0.5))])
    assert set(prune(database, NOW + YEAR).values()) == {0}


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("UPDATE sessions SET state = 'running'", "Jobs that have ended hold a live session: j1"),
        ("UPDATE members SET live = true", "Sessions that are over hold agents: s1"),
        ("UPDATE jobs SET generation = 0", "Sessions have a generation that their job never gave: s1"),
        ("UPDATE blocks SET state = 'issued'", "Blocks are being measured in sessions that are over: b1"),
        ("UPDATE blocks SET state = 'void'", "Blocks have a result and do not count as measured: b1"),
        ("DELETE FROM results", "Measured blocks have no result: b1"),
        ("UPDATE trials SET state = 'open'", "Jobs that have ended have open trials: j1"),
        ("DELETE FROM trials", "Blocks belong to trials that are missing: b1"),
    ],
)
def test_what_does_not_fit_together_is_found(ended: Database, damage: str, sentence: str) -> None:
    assert find_damage(ended) == []
    with ended.begin() as work:
        work.connection.execute(text(damage))
    assert sentence in find_damage(ended)


def test_agent_that_waits_for_its_first_job_is_not_old(database: Database) -> None:
    with database.begin() as work:
        work.agents.add("a1", "one", make_node("one"), NOW - YEAR)
        work.agents.see_all(["a1"], NOW)
    assert set(prune(database, NOW - timedelta(days=1)).values()) == {0}
