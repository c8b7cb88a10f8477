"""Routes that change a job: cancel, pause, resume, prioritise, extend, archive, clone and delete it; repeat a trial."""

from typing import Annotated

from fastapi import Header, Response

from advisor.api.access import Submitter
from advisor.api.context import Here, IdempotencyKey
from advisor.api.strict_json import make_router
from advisor.protocol.asked.jobs import Continuation, Job, Prioritisation
from advisor.services import jobs
from advisor.services.changing import continuing, pausing, repeating, tidying

router = make_router(prefix="/jobs", tags=["jobs"])

IfMatch = Annotated[
    str | None,
    Header(
        description="The ETag that the job has to have still: 412 `version_mismatch` where it has changed since."
    ),
]


@router.post("/{job_id}:cancel", summary="Cancel a job")
def cancel_job(
    job_id: str, principal: Submitter, context: Here, response: Response, if_match: IfMatch = None
) -> Job:
    """Ask a job to stop. It is cancelling until every training process is gone; what it measured stays.

    403 `not_your_job` for who is neither its owner nor of its team nor an administrator.
    """
    with context.database.begin() as work:
        job = jobs.cancel_job(work, job_id, principal, context.clock(), if_match)
    return _with_etag(job, response)


@router.post("/{job_id}:pause", summary="Let a job start nothing new")
def pause_job(
    job_id: str, principal: Submitter, context: Here, response: Response, if_match: IfMatch = None
) -> Job:
    """Pause a job: it gets no new session, and one that is measuring ends behind its race; nothing measured is lost.

    409 `job_is_final` for a job that has ended or is being cancelled, 403 `not_your_job`.
    """
    with context.database.begin() as work:
        job = pausing.pause_job(work, job_id, principal, context.clock(), if_match)
    return _with_etag(job, response)


@router.post("/{job_id}:resume", summary="Let a paused job go on")
def resume_job(
    job_id: str, principal: Submitter, context: Here, response: Response, if_match: IfMatch = None
) -> Job:
    """Resume a paused job where it stood. 409 `job_is_final` where it has ended, 403 `not_your_job`."""
    with context.database.begin() as work:
        job = pausing.resume_job(work, job_id, principal, context.clock(), if_match)
    return _with_etag(job, response)


@router.post("/{job_id}:prioritise", summary="Let a job come earlier or later")
def prioritise_job(
    job_id: str,
    wanted: Prioritisation,
    principal: Submitter,
    context: Here,
    response: Response,
    if_match: IfMatch = None,
) -> Job:
    """Give a job another priority. A session that it holds goes on; the next one is due in the new order.

    403 `forbidden` for `high`, which only an administrator gives, 409 `job_is_final` for a job that has ended or is
    being cancelled, 403 `not_your_job`.
    """
    with context.database.begin() as work:
        now = context.clock()
        job = pausing.prioritise_job(work, job_id, wanted.priority, principal, now, if_match)
    return _with_etag(job, response)


@router.post("/{job_id}/trials/{number}:repeat", summary="Measure a trial again")
def repeat_trial(
    job_id: str,
    number: int,
    principal: Submitter,
    context: Here,
    response: Response,
    if_match: IfMatch = None,
) -> Job:
    """Let a strategy that the search has measured race the baseline once more, within the search's share of the budget.

    409 `not_repeatable` for the baseline, for what failed and once the search is over, 409 `job_is_final` for a job
    that has ended or is being cancelled, 403 `not_your_job`.
    """
    with context.database.begin() as work:
        job = repeating.repeat_trial(work, job_id, number, principal, context.clock(), if_match)
    return _with_etag(job, response)


@router.post("/{job_id}:extend", summary="Give a job that has ended more budget")
def extend_job(
    job_id: str,
    more: Continuation,
    principal: Submitter,
    context: Here,
    response: Response,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Job:
    """Queue it again; it goes on where it stood and keeps all that it measured. Also for failed and cancelled jobs.

    409 `job_is_live` while it has not ended, 409 `nothing_to_continue` where it measured nothing, 403 `not_your_job`.
    """
    with context.database.begin() as work:
        now = context.clock()
        job = continuing.continue_job(work, job_id, more, principal, idempotency_key, now, if_match)
    return _with_etag(job, response)


@router.post("/{job_id}:archive", summary="Leave a job out of lists")
def archive_job(
    job_id: str, principal: Submitter, context: Here, response: Response, if_match: IfMatch = None
) -> Job:
    """Archive a job that has ended: only lists that ask for archived jobs show it. Extending it brings it back.

    409 `job_is_live` while it has not ended, 403 `not_your_job`.
    """
    with context.database.begin() as work:
        job = tidying.archive_job(work, job_id, principal, context.clock(), if_match=if_match)
    return _with_etag(job, response)


@router.post("/{job_id}:unarchive", summary="Take a job back into lists")
def unarchive_job(
    job_id: str, principal: Submitter, context: Here, response: Response, if_match: IfMatch = None
) -> Job:
    """Take a job out of the archive. 409 `job_is_live` while it has not ended, 403 `not_your_job`."""
    with context.database.begin() as work:
        job = tidying.archive_job(work, job_id, principal, context.clock(), archived=False, if_match=if_match)
    return _with_etag(job, response)


@router.post("/{job_id}:clone", status_code=201, summary="Submit a job's specification again")
def clone_job(
    job_id: str,
    principal: Submitter,
    context: Here,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Submit the specification of a job as a new job of the asker.

    403 `not_your_job` where the environment of another owner's job may hold that owner's secrets.
    """
    with context.database.begin() as work:
        hub = context.settings.hub_samplers
        job = tidying.clone_job(work, job_id, principal, idempotency_key, hub, context.clock())
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return _with_etag(job, response)


@router.delete("/{job_id}", status_code=204, summary="Delete a job and all that was measured for it")
def delete_job(job_id: str, principal: Submitter, context: Here, if_match: IfMatch = None) -> None:
    """Delete a job that has ended: its trials, logs, telemetry, advice and events go with it, for good.

    409 `job_is_live` while it has not ended, 403 `not_your_job`.
    """
    with context.database.begin() as work:
        tidying.delete_job(work, job_id, principal, if_match)


def _with_etag(job: Job, response: Response) -> Job:
    response.headers["ETag"] = job.etag
    return job
