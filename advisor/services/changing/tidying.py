"""Tidying up: jobs that have ended are archived, deleted, or done once more."""

from datetime import datetime

from advisor.errors import JobIsLive, NotYourJob
from advisor.protocol.asked.jobs import Job, Priority
from advisor.protocol.views import EventKind
from advisor.services.jobs import get_job, lock_own_job, may_change, may_give, refuse_hub, submit_job
from advisor.services.tokens import Principal
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint

_CANCEL_FIRST = "Cancel it first: `advisor cancel`; when it has ended this can be done."


def archive_job(
    work: UnitOfWork,
    job_id: str,
    asker: Principal,
    now: datetime,
    *,
    archived: bool = True,
    if_match: str | None = None,
) -> Job:
    """Leave a job that has ended out of lists that do not ask for archived ones, or take it back into them.

    Repeating it changes nothing. Raises JobNotFound, NotYourJob, VersionMismatch, and JobIsLive before it has ended.
    """
    job = _lock_ended(work, job_id, asker, if_match)
    if archived == (job.archived_at is not None):
        return job
    work.jobs.archive(job_id, now if archived else None)
    work.reach(FaultPoint.JOB_ARCHIVED)
    verb = "archived the job" if archived else "took the job out of the archive"
    work.events.append(job_id, EventKind.JOB, f"{asker.name} {verb}.", now)
    return get_job(work, job_id)


def delete_job(work: UnitOfWork, job_id: str, asker: Principal, if_match: str | None = None) -> None:
    """Delete a job that has ended with everything that was ever stored for it.

    Raises JobNotFound, NotYourJob, VersionMismatch, and JobIsLive before it has ended.
    """
    work.jobs.delete(_lock_ended(work, job_id, asker, if_match).id)
    work.reach(FaultPoint.JOB_DELETED)


def clone_job(
    work: UnitOfWork, job_id: str, asker: Principal, idempotency_key: str | None, hub: str, now: datetime
) -> Job:
    """Submit a job's specification again, as a job of the asker; the same key gives the same job again.

    Its priority becomes normal where the asker may not give the one of the job.

    Raises JobNotFound, IdempotencyConflict, InvalidJob for a sampler that this server takes from no `hub`, and
    NotYourJob where the specification holds another owner's environment: that may be secret, and a clone would use it.
    """
    job = get_job(work, job_id)
    if job.spec.workload.environment and not may_change(asker, job):
        raise NotYourJob(
            f"Job {job_id} belongs to {job.owner or 'no owner'}, and its environment may hold secrets of theirs.",
            hint="Submit the job with an environment of your own.",
        )
    refuse_hub(job.spec, hub)
    # A signature is for one job.
    spec = job.spec.model_copy(update={"signed": None})
    if not may_give(asker, spec.priority):
        # That one was an administrator's gift.
        spec = spec.model_copy(update={"priority": Priority.NORMAL})
    return submit_job(work, spec, asker, idempotency_key, now)


def _lock_ended(work: UnitOfWork, job_id: str, asker: Principal, if_match: str | None) -> Job:
    job = lock_own_job(work, job_id, asker, if_match)
    if not job.state.is_final:
        raise JobIsLive(f"Job {job_id} {job.state.predicate}: it has not ended.", hint=_CANCEL_FIRST)
    return job
