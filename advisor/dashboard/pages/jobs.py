"""Routes of the jobs: the list, a job, its trials, log, export, live stream, and what can be done to it."""

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response, StreamingResponse

from advisor.dashboard.door.access import Door, Guest
from advisor.dashboard.live import stream_changes
from advisor.dashboard.rendering import Renderer
from advisor.dashboard.source import Source
from advisor.dashboard.views.job import view_header, view_job_page
from advisor.dashboard.views.jobs import view_job_lines
from advisor.dashboard.views.runs import view_runs
from advisor.dashboard.views.site import view_log
from advisor.dashboard.views.trials import view_trial_page
from advisor.errors import NotFound
from advisor.protocol.asked.jobs import Continuation, JobState
from advisor.protocol.views import JobEvent, read_last_event

_PAGE_OF_JOBS = 25
_EVENTS_AT_ONCE = 500
_MOST_EVENTS = 5000
_LOG_PARTS = 200
_LIST_REFRESH_S = 10
_RUN_REFRESH_S = 30
"""A finished job's page, while trainings under its strategy report: as often as they do."""
_MOST_MINUTES = 43_200.0


def read_all_events(source: Source, job_id: str) -> list[JobEvent]:
    """Return the job's events, oldest first; beyond 5000 the oldest are left out."""
    events: list[JobEvent] = []
    while True:
        part = source.events(job_id, events[-1].seq if events else 0, _EVENTS_AT_ONCE)
        events = [*events, *part][-_MOST_EVENTS:]
        if len(part) < _EVENTS_AT_ONCE:
            return events


def build_job_routes(
    source: Source,
    door: Door,
    renderer: Renderer,
    clock: Callable[[], datetime],
    is_stopping: Callable[[], bool],
) -> APIRouter:
    """Return the routes under /jobs."""
    router = APIRouter()

    def show(request: Request, guest: Guest, name: str, context: Mapping[str, object]) -> Response:
        known = {"person": guest.person, "form_key": guest.form_key, "section": "jobs"}
        return renderer.render(request, name, {**known, **context})

    @router.get("/")
    def go_to_jobs() -> Response:
        return RedirectResponse("/jobs", status_code=307)

    @router.get("/jobs")
    def show_jobs(request: Request, state: str = "", cursor: str | None = None) -> Response:
        guest = door.admit(request)
        chosen = JobState(state) if state in set(JobState) else None
        found = source.list_jobs(chosen, _PAGE_OF_JOBS, cursor)
        lines = view_job_lines(found.items, source.advice, source.history, clock())
        context = {
            "jobs": lines,
            "state": chosen or "",
            "states": list(JobState),
            "next_cursor": found.next_cursor,
            "is_first_page": cursor is None,
            "server_url": str(request.base_url).rstrip("/"),
            "refresh_s": _LIST_REFRESH_S,
        }
        return show(request, guest, "jobs.html", context)

    @router.get("/jobs/{job_id}")
    def show_job(request: Request, job_id: str) -> Response:
        guest = door.admit(request)
        job = source.job(job_id)
        # Events before the history: what happens in between is then fetched again rather than missed.
        events = read_all_events(source, job_id)
        advice = source.advice(job_id) if job.state.is_final else None
        history, telemetry = source.history(job_id), source.telemetry(job_id)
        page = view_job_page(job, history, advice, events, guest.person, clock(), telemetry)
        live_url = f"/jobs/{job_id}/live?after={page.last_event}" if page.header.is_live else ""
        runs = view_runs(source.runs(job_id), clock())
        refresh = _RUN_REFRESH_S if runs and not page.header.is_live else 0
        context = {
            "page": page,
            "header": page.header,
            "live_url": live_url,
            "runs": runs,
            "refresh_s": refresh,
        }
        return show(request, guest, "job.html", context)

    @router.get("/jobs/{job_id}/trials/{number}")
    def show_trial(request: Request, job_id: str, number: int) -> Response:
        guest = door.admit(request)
        job, history = source.job(job_id), source.history(job_id)
        try:
            trial = history.trial(number)
        except KeyError:
            hint = (
                f"It has the trials 0 to {len(history.trials) - 1}."
                if history.trials
                else "It has no trial yet."
            )
            raise NotFound(f"This job has no trial {number}.", hint=hint) from None
        header = view_header(job, guest.person, job.state is JobState.FINISHED, clock())
        refresh = _LIST_REFRESH_S if trial.outcome is None and header.is_live else 0
        context = {"header": header, "page": view_trial_page(trial, history), "refresh_s": refresh}
        return show(request, guest, "trial.html", context)

    @router.get("/jobs/{job_id}/log")
    def show_log(request: Request, job_id: str, after: int = 0) -> Response:
        guest = door.admit(request)
        job = source.job(job_id)
        parts = source.log(job_id, max(0, after), _LOG_PARTS)
        context = {
            "header": view_header(job, guest.person, job.state is JobState.FINISHED, clock()),
            "blocks": view_log(parts),
            "after": after,
            "next_after": parts[-1].seq if len(parts) == _LOG_PARTS else None,
        }
        return show(request, guest, "log.html", context)

    @router.get("/jobs/{job_id}/export")
    def show_export(request: Request, job_id: str, format: str = "", target: str = "") -> Response:
        guest = door.admit(request)
        job, advice = source.job(job_id), source.advice(job_id)
        formats = [entry for entry in source.export_formats() if job.spec.workload.kind in entry.kinds]
        chosen = next((entry for entry in formats if entry.name == format), formats[0])
        exported = None
        if advice is not None:
            version = target if target in chosen.targets else None
            exported = source.export(job_id, format or chosen.name, version)
        context = {
            "header": view_header(job, guest.person, advice is not None, clock()),
            "advice": advice,
            "formats": formats,
            "chosen": chosen,
            "target": target if target in chosen.targets else (chosen.targets[0] if chosen.targets else ""),
            "exported": exported,
        }
        return show(request, guest, "export.html", context)

    @router.get("/jobs/{job_id}/export/file")
    def download_export(request: Request, job_id: str, format: str, target: str = "") -> Response:
        door.admit(request)
        exported = source.export(job_id, format, target or None)
        name = exported.filename.replace('"', "").replace("/", "_")
        # As plain bytes to be saved, whatever the format: nothing that a job wrote is ever shown as a page.
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(exported.content.encode(), media_type="application/octet-stream", headers=headers)

    @router.post("/jobs/{job_id}/cancel")
    def cancel_job(request: Request, job_id: str, form_key: Annotated[str, Form()] = "") -> Response:
        guest = door.admit_form(request, form_key)
        source.cancel(job_id, guest.person)
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    @router.post("/jobs/{job_id}/pause")
    def pause_job(request: Request, job_id: str, form_key: Annotated[str, Form()] = "") -> Response:
        guest = door.admit_form(request, form_key)
        source.pause(job_id, guest.person)
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    @router.post("/jobs/{job_id}/resume")
    def resume_job(request: Request, job_id: str, form_key: Annotated[str, Form()] = "") -> Response:
        guest = door.admit_form(request, form_key)
        source.resume(job_id, guest.person)
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    @router.post("/jobs/{job_id}/continue")
    def continue_job(
        request: Request,
        job_id: str,
        form_key: Annotated[str, Form()] = "",
        minutes: Annotated[float, Form(gt=0, le=_MOST_MINUTES)] = 5.0,
    ) -> Response:
        guest = door.admit_form(request, form_key)
        source.continue_job(job_id, Continuation(more_seconds=60.0 * minutes), guest.person)
        return RedirectResponse(f"/jobs/{job_id}", status_code=303)

    @router.get("/jobs/{job_id}/live")
    async def follow_job(request: Request, job_id: str, after: int = 0) -> Response:
        await run_in_threadpool(door.admit, request)
        await run_in_threadpool(source.job, job_id)
        last = read_last_event(request.headers.get("last-event-id"))

        async def is_welcome() -> bool:
            gone = is_stopping() or await request.is_disconnected()
            return not gone and await run_in_threadpool(door.recognise, request) is not None

        stream: AsyncIterator[str] = stream_changes(source, job_id, max(after, last), is_welcome)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    return router
