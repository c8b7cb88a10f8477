"""Routes that look at one job: its overview, trials, comparison, figures, what-ifs, log and exports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from advisor.dashboard.authenticator.access import Authenticator, SignedIn
from advisor.dashboard.rendering import Renderer
from advisor.dashboard.source import Source
from advisor.dashboard.views.job.advice import pack_files, view_difference
from advisor.dashboard.views.job.forecasts import Cluster
from advisor.dashboard.views.job.page import list_actions, view_overview
from advisor.dashboard.views.job.story import list_facts, list_failures, list_idle
from advisor.dashboard.views.server.site import view_log
from advisor.dashboard.views.trials.compare import compare_trials, read_numbers
from advisor.dashboard.views.trials.explore import explore
from advisor.dashboard.views.trials.explore_query import ExploreQuery
from advisor.dashboard.views.trials.measured import measure_trials
from advisor.dashboard.views.trials.page import view_repeat, view_trial_page
from advisor.dashboard.views.trials.table import COLUMNS, STATES, TrialQuery, view_trial_table, write_csv
from advisor.errors import NoForecast, NotFound
from advisor.exporters import choose_format, list_at_work
from advisor.exporters.format import say_held
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.kinds import Effect
from advisor.protocol.views import JobEvent
from advisor.services.answers.advice import (
    bundle_strategy,
    export_strategy,
    list_formats,
    predict,
    report_job,
)
from advisor.services.answers.runs import list_runs
from advisor.services.jobs import get_history, get_job, list_events, read_log
from advisor.services.measuring.telemetry import read_series

_EVENTS_AT_ONCE = 500
_MOST_EVENTS = 5000
_EVENTS_SHOWN = 200
"""On one page, the latest first."""
_LOG_PARTS = 200
_RUN_REFRESH_S = 30
"""A finished job's page, while trainings under its strategy report: as often as they do."""

_FILTERS = {"states": STATES, "rungs": [effect.value for effect in Effect]}
"""What trials are filtered by, on every page that does."""


def read_all_events(source: Source, job_id: str) -> list[JobEvent]:
    """Return the job's events, oldest first; beyond 5000 the oldest are left out."""
    events: list[JobEvent] = []
    while True:
        part = source.read(list_events, job_id, events[-1].seq if events else 0, _EVENTS_AT_ONCE)
        events = [*events, *part][-_MOST_EVENTS:]
        if len(part) < _EVENTS_AT_ONCE:
            return events


@dataclass(frozen=True)
class _Opened:
    """A job that this person may look at."""

    signed_in: SignedIn
    job: Job
    advice: Advice | None
    events: list[JobEvent]
    """Read first: what happens while the page is built is then fetched again rather than missed."""


def build_view_routes(source: Source, authenticator: Authenticator, renderer: Renderer) -> APIRouter:
    """Return the routes that look at one job."""
    router = APIRouter()

    def open_job(request: Request, job_id: str) -> _Opened:
        signed_in = authenticator.admit(request)
        job = source.read(get_job, job_id)
        events = read_all_events(source, job_id)
        return _Opened(signed_in, job, source.find_advice(job_id) if job.state.is_final else None, events)

    def show(
        request: Request, opened: _Opened, tab: str, name: str, context: Mapping[str, object]
    ) -> Response:
        """Render one view of the job; `tab` is the view that the tab bar marks."""
        job, signed_in = opened.job, opened.signed_in
        last = opened.events[-1].seq if opened.events else 0
        known = {
            "person": signed_in.person,
            "form_key": signed_in.form_key,
            "section": "jobs",
            "tab": tab,
            "crumb": "",
            "now": source.clock(),
            "job": job,
            "advice": opened.advice,
            "actions": list_actions(job, signed_in.person, opened.advice),
            "live_url": "" if job.state.is_final else f"/jobs/{job.id}/live?after={last}",
        }
        return renderer.render(request, name, {**known, **context})

    def download(filename: str, content: bytes) -> Response:
        """Answer with bytes to be saved, whatever they are: nothing that a job wrote is ever shown as a page."""
        name = filename.replace('"', "").replace("/", "_")
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @router.get("/jobs/{job_id}")
    def show_job(request: Request, job_id: str) -> Response:
        opened = open_job(request, job_id)
        job, history = opened.job, source.read(get_history, job_id)
        page = view_overview(
            job, history, opened.advice, opened.events, source.clock(), source.read(read_series, job_id)
        )
        runs = source.read(list_runs, job_id)
        refresh = _RUN_REFRESH_S if runs and job.state.is_final else 0
        context = {"page": page, "runs": runs, "refresh_s": refresh}
        return show(request, opened, "", "job.html", context)

    @router.get("/jobs/{job_id}/trials")
    def show_trials(request: Request, job_id: str) -> Response:
        opened = open_job(request, job_id)
        query = TrialQuery.read(request.query_params.multi_items())
        advised = opened.advice.changes if opened.advice else None
        context = {
            "table": view_trial_table(measure_trials(source.read(get_history, job_id)), advised, query),
            "columns": COLUMNS,
            **_FILTERS,
            "earlier": next(
                (e.sentence for e in opened.events if e.facts is not None and e.facts.earlier), ""
            ),
            "search_ended": opened.advice.search_ended_because if opened.advice else "",
        }
        return show(request, opened, "trials", "trials.html", context)

    @router.get("/jobs/{job_id}/trials.csv")
    def download_trials(request: Request, job_id: str) -> Response:
        authenticator.admit(request)
        query = TrialQuery.read(request.query_params.multi_items())
        content = write_csv(measure_trials(source.read(get_history, job_id)), query)
        headers = {"content-disposition": f'attachment; filename="trials-{job_id}.csv"'}
        return Response(content.encode(), media_type="text/csv; charset=utf-8", headers=headers)

    @router.get("/jobs/{job_id}/compare")
    def compare(
        request: Request,
        job_id: str,
        trials: Annotated[list[str], Query()] = [],  # noqa: B006
    ) -> Response:
        opened = open_job(request, job_id)
        numbers = read_numbers(trials)
        context = {
            "page": compare_trials(measure_trials(source.read(get_history, job_id)), numbers),
            "crumb": f"trials {', '.join(map(str, numbers))}",
        }
        return show(request, opened, "trials", "compare.html", context)

    @router.get("/jobs/{job_id}/trials/{number}")
    def show_trial(request: Request, job_id: str, number: int) -> Response:
        opened = open_job(request, job_id)
        history = source.read(get_history, job_id)
        try:
            trial = history.trial(number)
        except KeyError:
            hint = (
                f"It has the trials 0 to {len(history.trials) - 1}."
                if history.trials
                else "It has no trial yet."
            )
            raise NotFound(f"This job has no trial {number}.", hint=hint) from None
        repeat = view_repeat(opened.job, trial, history, opened.signed_in.person)
        page = view_trial_page(trial, history, opened.job.spec.workload.kind)
        context = {"page": page, "crumb": f"trial {number}", "repeat": repeat}
        if trial.outcome is not None and not repeat.is_awaited:
            context["live_url"] = ""
        return show(request, opened, "trials", "trial.html", context)

    @router.get("/jobs/{job_id}/explore")
    def show_figures(request: Request, job_id: str) -> Response:
        opened = open_job(request, job_id)
        query = ExploreQuery.read(request.query_params.multi_items())
        page = explore(opened.job, source.read(get_history, job_id), opened.advice, query)
        return show(request, opened, "explore", "explore.html", {"page": page, **_FILTERS})

    @router.get("/jobs/{job_id}/what-if")
    def show_forecasts(request: Request, job_id: str) -> Response:
        opened = open_job(request, job_id)
        forecasts = opened.advice.forecasts if opened.advice else ()
        asked = Cluster.read(request.query_params)
        answer, refusal = None, ""
        if asked.is_asked:
            try:
                answer = predict(source.database, source.tuning, job_id, *asked.words, source.clock())
            except NoForecast as error:
                refusal = error.sentence
        facts = opened.job.facts
        context = {
            "forecasts": forecasts,
            "caveat": forecasts[0].caveat if forecasts else "",
            "asked": asked,
            "answer": [answer] if answer else (),
            "answer_caveat": answer.caveat if answer else "",
            "refusal": refusal,
            "measured": facts and (facts.nodes, facts.local_world_size, facts.batch_size_per_rank),
        }
        return show(request, opened, "what-if", "what_if.html", context)

    @router.get("/jobs/{job_id}/log")
    def show_log(request: Request, job_id: str, after: int = 0, before: int | None = None) -> Response:
        opened = open_job(request, job_id)
        told = [event for event in opened.events if before is None or event.seq < before]
        history, parts = (
            source.read(get_history, job_id),
            source.read(read_log, job_id, max(0, after), _LOG_PARTS),
        )
        context = {
            "failures": list_failures(history),
            "idle": list_idle(history),
            "facts": list_facts(opened.job),
            "refused": sorted(opened.job.refusals.items()),
            "sessions": history.sessions,
            "generations": {session.id: session.generation for session in history.sessions},
            "events": told[-_EVENTS_SHOWN:],
            "earlier": told[-_EVENTS_SHOWN].seq if len(told) > _EVENTS_SHOWN else None,
            "before": before,
            "blocks": view_log(parts),
            "after": after,
            "next_after": parts[-1].seq if len(parts) == _LOG_PARTS else None,
        }
        return show(request, opened, "log", "log.html", context)

    @router.get("/jobs/{job_id}/export")
    def show_export(request: Request, job_id: str, format: str = "", target: str = "") -> Response:
        opened = open_job(request, job_id)
        job, advice = opened.job, opened.advice
        formats = [entry for entry in list_formats() if job.spec.workload.kind in entry.kinds]
        wanted = format or choose_format(job).name
        chosen = next((entry for entry in formats if entry.name == wanted), formats[0])
        at_work = {info.name for info in list_at_work(job)}
        exported = None
        if advice is not None:
            version = target if target in chosen.targets else None
            exported = source.read(export_strategy, job_id, format or chosen.name, version)
        context = {
            "formats": [entry for entry in formats if entry.name in at_work],
            "unused": [entry for entry in formats if entry.name not in at_work],
            "chosen": chosen,
            "target": target if target in chosen.targets else (chosen.targets[0] if chosen.targets else ""),
            "exported": exported,
            "held": say_held(advice, exported.filename) if advice and exported else "",
            "difference": view_difference(advice, exported) if advice and exported else (),
        }
        return show(request, opened, "export", "export.html", context)

    @router.get("/jobs/{job_id}/export/file")
    def download_export(request: Request, job_id: str, format: str, target: str = "") -> Response:
        authenticator.admit(request)
        exported = source.read(export_strategy, job_id, format, target or None)
        return download(exported.filename, exported.data)

    @router.get("/jobs/{job_id}/export/bundle")
    def download_bundle(request: Request, job_id: str) -> Response:
        authenticator.admit(request)
        return download(f"strategy-{job_id}.zip", pack_files(source.read(bundle_strategy, job_id)))

    @router.get("/jobs/{job_id}/export/report")
    def download_report(request: Request, job_id: str) -> Response:
        authenticator.admit(request)
        return download(f"report-{job_id}.html", source.read(report_job, job_id).encode())

    return router
