"""What the storage promises of real trainings that report their steps, on SQLite and on PostgreSQL alike."""

from datetime import UTC, datetime, timedelta

from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.runs import ProductionRun, RunPoint
from advisor.storage import Database
from tests.unit.services.scripted_tuning import make_spec

NOW = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)


def make_run(name: str, minutes: int, rate: float = 100.0) -> ProductionRun:
    at = NOW + timedelta(minutes=minutes)
    point = RunPoint(at=at, step=7, samples_per_s=rate)
    return ProductionRun(
        id=name,
        host="a",
        ranks=2,
        began_at=NOW,
        reported_at=at,
        step=7,
        samples_per_s=rate,
        low=90.0,
        recent=(point,),
    )


def test_a_report_takes_the_place_of_the_one_before_and_the_silent_go_first(database: Database) -> None:
    with database.begin() as work:
        for name in ("j1", "j2"):
            work.jobs.add(Job(id=name, spec=make_spec(), state=JobState.QUEUED, created_at=NOW))
            for run, minutes in (("r1", 1), ("r2", 2), ("r3", 3)):
                work.runs.put(name, make_run(run, minutes))
        work.runs.put("j1", make_run("r1", 9, 50.0))
    with database.begin() as work:
        assert work.runs.get("j1", "r1") == make_run("r1", 9, 50.0)
        assert work.runs.get("j1", "none") is None
        assert [run.id for run in work.runs.of_job("j1")] == ["r1", "r3", "r2"]
        work.runs.prune("j1", 2)
    with database.read() as work:
        assert [run.id for run in work.runs.of_job("j1")] == ["r1", "r3"]
        assert len(work.runs.of_job("j2")) == 3
