"""Prioritising: a job that waits, or will wait once more, comes earlier or later than others from now on."""

from datetime import datetime

from advisor.protocol.asked.jobs import Job, Priority
from advisor.protocol.views import EventKind
from advisor.services.jobs import get_job, lock_own_job, refuse_ended, refuse_priority
from advisor.services.tokens import Principal
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint


def prioritise_job(
    work: UnitOfWork,
    job_id: str,
    priority: Priority,
    asker: Principal,
    now: datetime,
    if_match: str | None = None,
) -> Job:
    """Give a job another priority; a session that it holds goes on. Repeating it changes nothing.

    Raises JobNotFound, NotYourJob, VersionMismatch, Forbidden for a priority that the asker may not give, and
    JobIsFinal for a job that has ended or is being cancelled.
    """
    job = lock_own_job(work, job_id, asker, if_match)
    refuse_priority(priority, asker)
    refuse_ended(job)
    if job.spec.priority is priority:
        return job
    work.jobs.respecify(job_id, job.spec.model_copy(update={"priority": priority}))
    sentence = f"{asker.name} gave the job priority {priority.value}; it had {job.spec.priority.value}."
    work.events.append(job_id, EventKind.JOB, sentence, now)
    work.reach(FaultPoint.JOB_PRIORITISED)
    work.call_scheduler()
    return get_job(work, job_id)
