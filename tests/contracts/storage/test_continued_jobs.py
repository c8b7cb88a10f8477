"""What the storage promises of jobs that are given more budget, on SQLite and on PostgreSQL alike."""

from datetime import UTC, datetime, timedelta

from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.protocol.measured.trials import JobHistory, Outcome, Session, SessionState
from advisor.storage import Database
from tests.unit.services.scripted_tuning import ScriptedTuning, make_spec

NOW = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)


def make_job() -> Job:
    return Job(id="j1", spec=make_spec(), state=JobState.QUEUED, created_at=NOW)


def with_seconds(job: Job, seconds: float) -> Job:
    budget = job.spec.budget.model_copy(update={"max_seconds": seconds})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"budget": budget})})


def test_only_a_job_that_has_ended_is_reopened_and_every_time_is_kept(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        assert not work.jobs.reopen(make_job(), "More.", NOW)
        for times in (1, 2):
            since = (JobState.QUEUED,)
            work.jobs.move("j1", JobState.FINISHED, "Done.", since=since, now=NOW, stage=Stage.DONE)
            job = work.jobs.get("j1")
            assert job is not None
            assert work.jobs.reopen(with_seconds(job, 100.0 * times), "More.", NOW + times * (LATER - NOW))
    with database.read() as work:
        reopened = work.jobs.get("j1")
    assert reopened is not None
    assert (reopened.state, reopened.state_reason, reopened.finished_at) == (JobState.QUEUED, "More.", None)
    assert reopened.spec.budget.max_seconds == 200.0
    assert reopened.continued_at == (LATER, LATER + (LATER - NOW))
    assert Job.model_validate_json(reopened.model_dump_json()) == reopened


def test_job_that_was_never_continued_has_no_times(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        stored = work.jobs.get("j1")
    assert stored == make_job()


def test_fatal_trouble_counts_until_the_job_is_continued(database: Database) -> None:
    session = Session(id="s1", job_id="j1", generation=1, state=SessionState.ASSEMBLING, created_at=NOW)
    with database.begin() as work:
        work.jobs.add(make_job())
        work.sessions.add(session)
        work.sessions.note_trouble("s1", 1, "no_ddp", "The disk is full.", True)
        work.sessions.close(
            "s1", 1, SessionState.ENDED, Outcome.CRASHED, "The disk is full.",
            log_tail="", total_steps=0, now=NOW,
        )  # fmt: skip
        assert work.sessions.fatal_trouble("j1") == "The disk is full."
        work.jobs.move("j1", JobState.FAILED, "The disk is full.", since=(JobState.QUEUED,), now=NOW)
        work.jobs.reopen(make_job(), "More.", LATER)
        assert work.sessions.fatal_trouble("j1") is None
        assert work.sessions.fatal_trouble("none") is None


def test_new_advice_takes_the_old_ones_place(database: Database) -> None:
    first = ScriptedTuning().advise(make_job(), JobHistory(), NOW)
    second = first.model_copy(update={"headline": "Something else."})
    with database.begin() as work:
        work.jobs.add(make_job())
        work.advice.put(first, NOW)
        work.advice.put(second, LATER)
        assert work.advice.get("j1") == second
