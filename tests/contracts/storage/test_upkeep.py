"""What is taken away when it is old, what stays, and what is found when a database does not fit together."""

import logging
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.telemetry import TelemetrySample
from advisor.protocol.measured.trials import JobHistory, Outcome, Purpose, SessionState, Trial
from advisor.protocol.views import EventKind, Role
from advisor.services.background.pruning import Pruner
from advisor.settings import Settings
from advisor.storage import Database
from advisor.storage.repositories.blocks import MAX_QUARANTINED
from advisor.storage.whole.upkeep import Ages
from tests.contracts.storage.test_runs import make_run
from tests.contracts.storage.test_storage import NOW, add_running_session, make_block, make_job
from tests.unit.services.scripted_tuning import ScriptedTuning, make_node, make_result

YEAR = timedelta(days=365)


def prune(database: Database, before: datetime, jobs: datetime | None = None) -> dict[str, int]:
    """What goes; of jobs none does unless it is said."""
    with database.begin() as work:
        return work.upkeep.prune(Ages(before, before, before, before, before, jobs or NOW - YEAR))


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
        work.tokens.add("t4", Role.VIEWER, "", "sha", NOW, expires_at=NOW)
        work.tokens.add("t5", Role.VIEWER, "", "sha", NOW, expires_at=NOW + 2 * YEAR)
        work.members.leave("s1", "a1", Outcome.FINISHED, "", heard_at=NOW)
        ended = {"log_tail": "", "total_steps": 5, "now": NOW}
        work.sessions.close("s1", 1, SessionState.ENDED, Outcome.FINISHED, "", **ended)  # type: ignore[arg-type]
        work.members.release("s1")
        work.trials.close("j1", 0, Outcome.FINISHED, "", NOW)
        work.jobs.move("j1", JobState.FINISHED, "Done.", since=(JobState.RUNNING,), now=NOW)
        work.advice.put(
            ScriptedTuning().advise(make_job(), JobHistory(trials=(), blocks=(), sessions=()), NOW), NOW
        )
        work.events.append("j1", EventKind.JOB, "The job has finished.", NOW)
    return database


def test_old_records_go_and_what_a_job_found_stays(ended: Database) -> None:
    assert prune(ended, NOW + YEAR) == {
        "jobs with all that they measured": 0,
        "telemetry samples": 1,
        "chunks of log": 1,
        "quarantined results": 1,
        "ended tokens and keys of submissions": 3,
        "agents that measured nothing that is kept, and their tokens": 2,
    }
    with ended.read() as work:
        assert work.jobs.get("j1") is not None
        assert [block.result for block in work.blocks.of_job("j1")] == [make_result()]
        assert [agent.name for agent in work.agents.all()] == ["one"]
        assert work.logs.after("j1", 0, 10) == []
        assert [token.id for token in work.tokens.page(9)] == ["t5"]
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


def test_job_that_ended_long_ago_goes_with_all_that_it_measured(ended: Database) -> None:
    assert prune(ended, NOW - YEAR, jobs=NOW)["jobs with all that they measured"] == 0
    assert prune(ended, NOW - YEAR, jobs=NOW + YEAR)["jobs with all that they measured"] == 1
    with ended.read() as work:
        assert work.jobs.get("j1") is None
        assert work.sessions.of_job("j1") == ()
        assert work.connection.execute(text("SELECT count(*) FROM results")).scalar_one() == 0
    assert find_damage(ended) == []


def test_archived_job_stays_however_long_ago_it_ended(ended: Database) -> None:
    with ended.begin() as work:
        work.jobs.archive("j1", NOW)
    assert prune(ended, NOW - YEAR, jobs=NOW + YEAR)["jobs with all that they measured"] == 0


def test_job_whose_advice_a_training_follows_stays(ended: Database) -> None:
    with ended.begin() as work:
        work.runs.put("j1", make_run("r1", 365 * 24 * 60 + 1))
    assert prune(ended, NOW - YEAR, jobs=NOW + YEAR)["jobs with all that they measured"] == 0
    assert prune(ended, NOW - YEAR, jobs=NOW + 2 * YEAR)["jobs with all that they measured"] == 1


def test_job_that_is_continued_keeps_what_it_measured(ended: Database) -> None:
    with ended.begin() as work:
        job = work.jobs.get("j1")
        assert job is not None
        work.jobs.reopen(job, "More time.", NOW)
    gone = prune(ended, NOW + YEAR, jobs=NOW + YEAR)
    assert (gone["jobs with all that they measured"], gone["chunks of log"]) == (0, 0)
    with ended.read() as work:
        assert [block.result for block in work.blocks.of_job("j1")] == [make_result()]
        assert len(work.logs.after("j1", 0, 10)) == 1


def test_server_takes_old_records_away_in_small_steps_and_tells_what_went(
    ended: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ended.begin() as work:
        for number in range(10):
            work.logs.append("j1", "s1", "one", f"line {number}")
    settings = Settings(data_dir=tmp_path, keep_logs_days=30, keep_jobs_days=365)
    served_s = 0.0
    pruner = Pruner(ended, settings, NOW, lambda: served_s, at_once=4)
    served_s = timedelta(days=400).total_seconds()
    assert not pruner.step(NOW + timedelta(days=29))
    left = []
    with caplog.at_level(logging.INFO):
        while pruner.step(NOW + timedelta(days=31)):
            with ended.read() as work:
                left.append(len(work.logs.after("j1", 0, 99)))
    assert left == [7, 3, 0]
    assert "11 chunks of log" in caplog.text
    with ended.read() as work:
        assert work.jobs.get("j1") is not None
    while pruner.step(NOW + timedelta(days=366)):
        pass
    with ended.read() as work:
        assert work.jobs.get("j1") is None
        assert work.agents.all() == []
    assert find_damage(ended) == []


def test_clock_that_is_set_to_another_year_makes_nothing_old(ended: Database, tmp_path: Path) -> None:
    pruner = Pruner(ended, Settings(data_dir=tmp_path), NOW, lambda: 60.0)
    assert not pruner.step(NOW + 10 * YEAR)


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
        ("UPDATE jobs SET generation = 2", "Jobs have given generations to no session: j1"),
        (
            "UPDATE results SET generation = 2",
            "Results were accepted under another generation than their session's: b1",
        ),
        ("UPDATE quarantine SET payload_sha256 = 'sha'", "Results count and are in quarantine as well: b1"),
        ("UPDATE blocks SET ordinal = 1", "Sessions have lost blocks: s1"),
        ("UPDATE blocks SET state = 'void'", "Trials have finished and were never measured: j1"),
        ("DELETE FROM advice", "Jobs have finished without advice: j1"),
        (
            "UPDATE jobs SET state = 'cancelling'",
            "Jobs are being cancelled and hold no session whose end would cancel them: j1",
        ),
        ("UPDATE jobs SET events = 9", "Jobs have lost events: j1"),
        ("DELETE FROM events", "Jobs have lost events: j1"),
    ],
)
def test_what_does_not_fit_together_is_found(ended: Database, damage: str, sentence: str) -> None:
    assert find_damage(ended) == []
    with ended.begin() as work:
        work.connection.execute(text(damage))
    assert sentence in find_damage(ended)


def test_arms_that_do_not_share_their_fate_are_found(ended: Database) -> None:
    with ended.begin() as work:
        first = make_block().model_copy(update={"race": 1})
        for arm, name in enumerate(("b2", "b3")):
            work.blocks.issue("j1", first.model_copy(update={"id": name, "arm": arm, "ordinal": 1 + arm}))
        work.blocks.void("b2", "", NOW)
    assert "Arms of one race had different fates: s1" in find_damage(ended)


def test_live_session_without_its_agents_is_found(database: Database) -> None:
    with database.begin() as work:
        add_running_session(work)
    assert find_damage(database) == []
    with database.begin() as work:
        work.members.release("s1")
    assert find_damage(database) == ["Sessions that are not over have let agents go: s1"]


def test_results_that_agents_were_told_about_are_missed(ended: Database) -> None:
    with ended.read() as work:
        assert work.upkeep.find_lost(["b1"], ["b1"]) == []
        assert work.upkeep.find_lost(["b1", "b2"], ["b3"]) == [
            "Accepted results are gone: b2",
            "Results are gone from the quarantine: b3",
        ]


def test_results_that_made_room_in_the_quarantine_are_not_missed(ended: Database) -> None:
    with ended.begin() as work:
        for number in range(MAX_QUARANTINED):
            work.blocks.quarantine("s1", f"q{number}", "a1", 1, make_result(), "sha", "Late.", NOW)
        assert work.upkeep.find_lost([], ["b3"]) == []


def test_agent_that_waits_for_its_first_job_is_not_old(database: Database) -> None:
    with database.begin() as work:
        work.agents.add("a1", "one", make_node("one"), NOW - YEAR)
        work.agents.see_all({"a1": NOW})
    assert set(prune(database, NOW - timedelta(days=1)).values()) == {0}
