"""Continuing: a job that has ended is given more budget and goes on where it stood, with all that it measured."""

import hashlib
from datetime import datetime

from advisor.errors import JobIsLive, NothingToContinue
from advisor.protocol.asked.jobs import Continuation, Job
from advisor.protocol.measured.trials import BlockState
from advisor.protocol.views import EventKind
from advisor.services.jobs import check_spec, find_repeated, get_job, lock_own_job
from advisor.services.tokens import Principal
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint

_MOST_TRIALS = 500
_MINUTE_S = 60.0


def continue_job(
    work: UnitOfWork,
    job_id: str,
    more: Continuation,
    asker: Principal,
    idempotency_key: str | None,
    now: datetime,
    if_match: str | None = None,
) -> Job:
    """Queue a job that has ended once more, with a larger budget; the same key continues it once.

    Raises JobNotFound, NotYourJob, JobIsLive for a job that has not ended, NothingToContinue for one that measured
    nothing, InvalidJob where the budget becomes larger than a job may have, IdempotencyConflict for a key of another
    request, VersionMismatch.
    """
    words = f"continue {job_id} {more.model_dump_json()}"
    request = hashlib.sha256(words.encode()).hexdigest()
    if (repeated := find_repeated(work, asker, idempotency_key, request)) is not None:
        return repeated
    job = lock_own_job(work, job_id, asker, if_match)
    if not job.state.is_final:
        raise JobIsLive(f"Job {job_id} {job.state.predicate}: it still has the budget that it was given.")
    if not any(block.state is BlockState.DONE for block in work.blocks.of_job(job_id)):
        raise NothingToContinue(f"Job {job_id} was {job.state.value} before it had measured anything.")
    grown = grow_budget(job, more)
    check_spec(grown.spec)
    sentence = f"{_describe(more)} more: the job goes on where it stood and keeps all that it measured."
    work.jobs.reopen(grown, f"Continued with {sentence}", now)
    work.reach(FaultPoint.JOB_CONTINUED)
    work.call_scheduler()
    if idempotency_key is not None:
        work.jobs.remember_submission(asker.token_id, idempotency_key, request, job_id, now)
    work.events.append(job_id, EventKind.JOB, f"{asker.name} gave the job {sentence}", now)
    return get_job(work, job_id)


def grow_budget(job: Job, more: Continuation) -> Job:
    """Return the job with `more` added to its budget.

    A limit on device-hours grows in proportion to the seconds: otherwise it would end the job before they are spent.
    """
    budget = job.spec.budget
    seconds = budget.max_seconds + more.more_seconds
    hours = budget.max_device_hours
    grown = budget.model_copy(
        update={
            "max_seconds": seconds,
            "max_trials": min(_MOST_TRIALS, budget.max_trials + more.more_trials),
            "max_device_hours": None if hours is None else hours * seconds / budget.max_seconds,
        }
    )
    return job.model_copy(update={"spec": job.spec.model_copy(update={"budget": grown})})


def _describe(more: Continuation) -> str:
    minutes = more.more_seconds / _MINUTE_S
    spent = f"{minutes:.0f} minutes" if minutes >= 2 else f"{more.more_seconds:.0f} seconds"
    return f"{spent} and {more.more_trials} strategies" if more.more_trials else spent
