"""Routes of jobs: submit, list, look at, and what was measured."""

from typing import Annotated

from fastapi import Header, Query, Response

from advisor.api.access import Cursor, Limit, Reader, Submitter
from advisor.api.context import Here, IdempotencyKey
from advisor.api.strict_json import make_router
from advisor.protocol.answers.previews import JobPreview
from advisor.protocol.asked.jobs import Job, JobSpec
from advisor.protocol.measured.telemetry import SessionTelemetry, TelemetryPoint
from advisor.protocol.measured.trials import BlockPage, HistoryPage, SessionPage, TrialPage
from advisor.protocol.views import JobPage, JobQuery
from advisor.services import jobs
from advisor.services.answers import measured
from advisor.services.measuring import telemetry

router = make_router(prefix="/jobs", tags=["jobs"])


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    responses={
        200: {"model": JobPreview, "description": "`validate_only`: the job that it would be, and its plan."}
    },
)
def submit_job(
    spec: JobSpec,
    principal: Submitter,
    context: Here,
    response: Response,
    validate_only: Annotated[
        bool,
        Query(description="Store nothing; say what the job would do, as far as that is known (200)."),
    ] = False,
    idempotency_key: IdempotencyKey = None,
) -> JobPreview | Job:
    """Store a job; it starts as soon as enough agents are idle."""
    now = context.clock()
    jobs.refuse_hub(spec, context.settings.hub_samplers)
    if validate_only:
        response.status_code = 200
        job = jobs.preview_job(spec, principal, now)
        return JobPreview(**dict(job), plan=context.tuning.preview(job, now))
    with context.database.begin() as work:
        job = jobs.submit_job(work, spec, principal, idempotency_key, now)
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return job


@router.get("", summary="List jobs")
def list_jobs(wanted: Annotated[JobQuery, Query()], _: Reader, context: Here) -> JobPage:
    """Return one page of jobs, newest first. An unknown filter is refused: it would silently list every job."""
    with context.database.read() as work:
        return jobs.list_jobs(work, wanted)


@router.get("/{job_id}", summary="Look at a job", responses={304: {"description": "Nothing has changed."}})
def get_job(
    job_id: str,
    _: Reader,
    context: Here,
    response: Response,
    if_none_match: Annotated[str | None, Header(description="The ETag of an earlier answer.")] = None,
) -> Job:
    """Return a job; its ETag changes with every transition."""
    with context.database.read() as work:
        job = jobs.get_job(work, job_id)
    if if_none_match == job.etag:
        return Response(status_code=304, headers={"ETag": job.etag})  # type: ignore[return-value]
    response.headers["ETag"] = job.etag
    return job


@router.get("/{job_id}/history", summary="Everything measured for a job")
def get_history(
    job_id: str, _: Reader, context: Here, limit: Limit = 200, cursor: Cursor = None
) -> HistoryPage:
    """Return a page of a job's trials, blocks and sessions so far: at most `limit` of each, in their order."""
    with context.database.read() as work:
        return measured.list_history(work, job_id, limit, cursor)


@router.get("/{job_id}/trials", summary="The trials of a job")
def list_trials(
    job_id: str, _: Reader, context: Here, limit: Limit = 500, cursor: Cursor = None
) -> TrialPage:
    """Return a page of a job's trials, by number."""
    with context.database.read() as work:
        return measured.list_trials(work, job_id, limit, cursor)


@router.get("/{job_id}/blocks", summary="The blocks of a job")
def list_blocks(
    job_id: str, _: Reader, context: Here, limit: Limit = 500, cursor: Cursor = None
) -> BlockPage:
    """Return a page of a job's blocks, session by session in the order they were issued."""
    with context.database.read() as work:
        return measured.list_blocks(work, job_id, limit, cursor)


@router.get("/{job_id}/sessions", summary="The sessions of a job")
def list_sessions(
    job_id: str, _: Reader, context: Here, limit: Limit = 500, cursor: Cursor = None
) -> SessionPage:
    """Return a page of a job's sessions, oldest first."""
    with context.database.read() as work:
        return measured.list_sessions(work, job_id, limit, cursor)


@router.get("/{job_id}/telemetry/series", summary="Telemetry of a job's latest session, for a page")
def read_telemetry_series(job_id: str, _: Reader, context: Here) -> SessionTelemetry:
    """Return at most 120 points a device of the latest session, and what each node did over all of it."""
    with context.database.read() as work:
        return telemetry.read_series(work, job_id)


@router.get("/{job_id}/telemetry", summary="Telemetry of a job's latest session")
def read_telemetry(
    job_id: str, _: Reader, context: Here, limit: Annotated[int, Query(ge=1, le=10_000)] = 2000
) -> list[TelemetryPoint]:
    """Return samples of the latest session, evenly thinned out to at most `limit`."""
    with context.database.read() as work:
        return jobs.read_telemetry(work, job_id, limit)
