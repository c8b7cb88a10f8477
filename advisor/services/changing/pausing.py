"""How a job waits: paused, it starts nothing new until it is resumed; and earlier or later than others."""

from datetime import datetime

from advisor.protocol.asked.jobs import Job, JobState, Priority
from advisor.protocol.measured.trials import SessionState
from advisor.protocol.views import EventKind
from advisor.services.ending import end_session
from advisor.services.jobs import get_job, lock_own_job, refuse_ended, refuse_priority
from advisor.services.tokens import Principal
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint


def pause_job(
    work: UnitOfWork,
    job_id: str,
    asker: Principal,
    now: datetime,
    if_match: str | None = None,
) -> Job:
    """Let a job start nothing new. Repeating it changes nothing.

    A session that is measuring ends when it next asks what to measure, so that no race is lost; one whose ranks have
    not started ends at once. Raises JobNotFound, NotYourJob, VersionMismatch, and JobIsFinal for a job that has ended
    or is being cancelled.
    """
    job = lock_own_job(work, job_id, asker, if_match)
    if job.state is JobState.PAUSED:
        return job
    refuse_ended(job)
    reason = f"Paused by {asker.name}. It goes on when it is resumed: `advisor resume {job_id}`."
    work.jobs.move(job_id, JobState.PAUSED, reason, since=(JobState.QUEUED, JobState.RUNNING), now=now)
    sentence = f"{asker.name} paused the job: it starts nothing new, and keeps all that it measured."
    work.events.append(job_id, EventKind.JOB, sentence, now)
    work.reach(FaultPoint.JOB_PAUSED)
    work.call_scheduler()
    session = work.sessions.live_of(job_id)
    if session is not None and session.state is SessionState.ASSEMBLING:
        end_session(work, session, "The job was paused.", now)
    return get_job(work, job_id)


def resume_job(
    work: UnitOfWork, job_id: str, asker: Principal, now: datetime, if_match: str | None = None
) -> Job:
    """Let a paused job go on where it stood. Repeating it changes nothing.

    Raises JobNotFound, NotYourJob, VersionMismatch, and JobIsFinal for a job that has ended or is being cancelled.
    """
    job = lock_own_job(work, job_id, asker, if_match)
    if job.state is not JobState.PAUSED:
        refuse_ended(job)
        return job
    # A session that has not asked what to measure since the job was paused goes on as if it had not been.
    to = JobState.RUNNING if work.sessions.live_of(job_id) else JobState.QUEUED
    reason = "" if to is JobState.RUNNING else "Waiting to be looked at."
    work.jobs.move(job_id, to, reason, since=(JobState.PAUSED,), now=now)
    work.events.append(job_id, EventKind.JOB, f"{asker.name} resumed the job.", now)
    work.reach(FaultPoint.JOB_RESUMED)
    work.call_scheduler()
    return get_job(work, job_id)


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
