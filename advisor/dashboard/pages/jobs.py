"""Routes of the list of jobs and of jobs side by side, of a job's live stream, and of what can be done to a job."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response, StreamingResponse

from advisor.dashboard.authenticator.access import Authenticator, SignedIn
from advisor.dashboard.live import Looks, stream_changes
from advisor.dashboard.rendering import Renderer
from advisor.dashboard.source import Source
from advisor.dashboard.views.server.jobs import JobLine, view_job_lines
from advisor.dashboard.views.trials.compare import compare_jobs, read_ids
from advisor.protocol.asked.jobs import Continuation, Job, JobState
from advisor.protocol.views import JobQuery, read_last_event
from advisor.services.changing.continuing import continue_job
from advisor.services.changing.pausing import pause_job, resume_job
from advisor.services.changing.repeating import repeat_trial
from advisor.services.jobs import cancel_job, get_history, get_job, list_jobs

_PAGE_OF_JOBS = 25
_LIST_REFRESH_S = 10
_VISIT_S = 5.0
"""A live stream asks that often whether its visitor is still signed in."""
_MOST_MINUTES = 43_200.0


def build_job_routes(
    source: Source,
    authenticator: Authenticator,
    renderer: Renderer,
    is_stopping: Callable[[], bool],
    hold_stream: Callable[[str], AbstractContextManager[object]],
) -> APIRouter:
    """Return the routes under /jobs."""
    router = APIRouter()

    def show(request: Request, signed_in: SignedIn, name: str, context: Mapping[str, object]) -> Response:
        known = {"person": signed_in.person, "form_key": signed_in.form_key, "section": "jobs"}
        return renderer.render(request, name, {**known, **context})

    def view_lines(jobs: Sequence[Job], now: datetime) -> list[JobLine]:
        return view_job_lines(jobs, source.find_advice, lambda job_id: source.read(get_history, job_id), now)

    @router.get("/")
    def go_to_jobs() -> Response:
        return RedirectResponse("/jobs", status_code=307)

    @router.get("/jobs")
    def show_jobs(request: Request, state: str = "", cursor: str | None = None) -> Response:
        signed_in = authenticator.admit(request)
        chosen = JobState(state) if state in set(JobState) else None
        wanted = JobQuery(state=(chosen,) if chosen else (), limit=_PAGE_OF_JOBS, cursor=cursor)
        found, now = source.read(list_jobs, wanted), source.clock()
        context = {
            "jobs": view_lines(found.items, now),
            "now": now,
            "state": chosen or "",
            "states": list(JobState),
            "next_cursor": found.next_cursor,
            "is_first_page": cursor is None,
            "server_url": str(request.base_url).rstrip("/"),
            "refresh_s": _LIST_REFRESH_S,
        }
        return show(request, signed_in, "jobs.html", context)

    @router.get("/compare")
    def compare(
        request: Request,
        jobs: Annotated[list[str], Query()] = [],  # noqa: B006
    ) -> Response:
        signed_in = authenticator.admit(request)
        found, now = [source.read(get_job, job_id) for job_id in read_ids(jobs)], source.clock()
        lines = view_lines(found, now)
        context = {"jobs": [line.job for line in lines], "groups": compare_jobs(lines), "now": now}
        return show(request, signed_in, "compare_jobs.html", context)

    @router.post("/jobs/{job_id}/cancel")
    def cancel(request: Request, job_id: str, form_key: Annotated[str, Form()] = "") -> Response:
        signed_in = authenticator.admit_form(request, form_key)
        source.change(cancel_job, job_id, signed_in.person, source.clock())
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    @router.post("/jobs/{job_id}/pause")
    def pause(request: Request, job_id: str, form_key: Annotated[str, Form()] = "") -> Response:
        signed_in = authenticator.admit_form(request, form_key)
        source.change(pause_job, job_id, signed_in.person, source.clock())
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    @router.post("/jobs/{job_id}/resume")
    def resume(request: Request, job_id: str, form_key: Annotated[str, Form()] = "") -> Response:
        signed_in = authenticator.admit_form(request, form_key)
        source.change(resume_job, job_id, signed_in.person, source.clock())
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    @router.post("/jobs/{job_id}/trials/{number}/repeat")
    def repeat(request: Request, job_id: str, number: int, form_key: Annotated[str, Form()] = "") -> Response:
        signed_in = authenticator.admit_form(request, form_key)
        source.change(repeat_trial, job_id, number, signed_in.person, source.clock())
        return RedirectResponse(f"/jobs/{job_id}/trials/{number}", status_code=303)

    @router.post("/jobs/{job_id}/continue")
    def extend(
        request: Request,
        job_id: str,
        form_key: Annotated[str, Form()] = "",
        minutes: Annotated[float, Form(gt=0, le=_MOST_MINUTES)] = 5.0,
    ) -> Response:
        signed_in = authenticator.admit_form(request, form_key)
        more = Continuation(more_seconds=60.0 * minutes)
        source.change(continue_job, job_id, more, signed_in.person, None, source.clock())
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    looks = Looks(source)

    async def hold(request: Request) -> AsyncIterator[None]:
        """Count a stream to its visitor's token, until its answer is over."""
        signed_in = await run_in_threadpool(authenticator.admit, request)
        with hold_stream(signed_in.person.token_id):
            yield

    @router.get("/jobs/{job_id}/live", dependencies=[Depends(hold)])
    async def follow_job(request: Request, job_id: str, after: int = 0) -> Response:
        await run_in_threadpool(source.read, get_job, job_id)
        last = read_last_event(request.headers.get("last-event-id"))

        seen_s = -_VISIT_S

        async def is_welcome() -> bool:
            nonlocal seen_s
            if is_stopping() or await request.is_disconnected():
                return False
            if time.monotonic() - seen_s >= _VISIT_S:
                seen_s = time.monotonic()
                return await run_in_threadpool(authenticator.recognise, request) is not None
            return True

        stream: AsyncIterator[str] = stream_changes(looks, job_id, max(after, last), is_welcome)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    return router
