"""Real trainings under an advised strategy: what they report, kept beside the job that advised it."""

from datetime import datetime

from advisor.protocol.measured.runs import MOST_POINTS, ProductionRun, RunEvent, RunPoint, RunReport
from advisor.protocol.views import EventKind
from advisor.services.jobs import get_job, lock_own_job
from advisor.services.tokens import Principal
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint

MOST_RUNS = 50
"""Kept of a job; those that have been silent longest go first."""


def report_run(
    work: UnitOfWork, job_id: str, run_id: str, report: RunReport, asker: Principal, now: datetime
) -> ProductionRun:
    """Take a report, and tell the job's story when throughput left the advised interval or came back.

    Raises JobNotFound, and NotYourJob for another owner's.
    """
    job = lock_own_job(work, job_id, asker)
    known = work.runs.get(job.id, run_id)
    point = RunPoint(at=now, step=report.step, samples_per_s=report.samples_per_s)
    is_below = known.is_below if known else False
    # Its answer may have been lost: the same report sent again tells nothing new.
    is_told = known is not None and known.step == report.step and is_below == (report.event is RunEvent.BELOW)
    if report.event is not None and not is_told:
        is_below = report.event is RunEvent.BELOW
        work.events.append(
            job.id,
            EventKind.PRODUCTION,
            f"In production on {report.host}: {report.sentence or report.event}",
            now,
        )
    run = ProductionRun(
        id=run_id,
        host=report.host,
        ranks=report.ranks,
        began_at=known.began_at if known else now,
        reported_at=now,
        step=report.step,
        samples_per_s=report.samples_per_s,
        low=report.low,
        is_below=is_below,
        sentence=report.sentence or (known.sentence if known else ""),
        recent=(*(known.recent if known else ()), point)[-MOST_POINTS:],
    )
    work.reach(FaultPoint.RUN_REPORTED)
    work.runs.put(job.id, run)
    work.runs.prune(job.id, MOST_RUNS)
    return run


def list_runs(work: UnitOfWork, job_id: str) -> tuple[ProductionRun, ...]:
    """Return the trainings that reported for a job, the latest report first. Raises JobNotFound."""
    return tuple(work.runs.of_job(get_job(work, job_id).id))
