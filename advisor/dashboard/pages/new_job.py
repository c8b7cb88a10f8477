"""Routes of the form for a new job: the empty form, what the job would do, and submitting it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Form, Request
from starlette.responses import RedirectResponse, Response

from advisor.dashboard.authenticator.access import Authenticator, SignedIn
from advisor.dashboard.rendering import Renderer
from advisor.dashboard.source import Source
from advisor.dashboard.views.job.new_job import (
    Draft,
    Reading,
    list_offered,
    place_refusal,
    read_draft,
    write_curl,
    write_yaml,
)
from advisor.errors import Forbidden, InvalidJob
from advisor.protocol.asked.jobs import OptunaSampler
from advisor.protocol.kinds import Allow
from advisor.protocol.training.workload import WorkloadKind
from advisor.protocol.views import AgentState
from advisor.services.agents import view_agents
from advisor.services.jobs import preview_job, submit_job

_Text = Annotated[str, Form(max_length=40_000)]


@dataclass(frozen=True)
class _Sent:
    """What a browser sent."""

    form_key: str
    request_key: str
    draft: Draft


def _take_form(
    form_key: _Text = "",
    request_key: Annotated[str, Form(max_length=200)] = "",
    name: _Text = "",
    command: _Text = "",
    kind: _Text = "pytorch",
    working_dir: _Text = "",
    nodes: _Text = "1",
    minutes: _Text = "30",
    trials: _Text = "24",
    allow: _Text = "exact",
    knobs: Annotated[list[str], Form()] = [],  # noqa: B006
    own: _Text = "",
    require: _Text = "",
    sampler: _Text = "",
) -> _Sent:
    return _Sent(
        form_key,
        request_key,
        Draft(
            name,
            command,
            kind,
            working_dir,
            nodes,
            minutes,
            trials,
            allow,
            tuple(knobs),
            own,
            require,
            sampler,
        ),
    )


def build_new_job_routes(
    source: Source, authenticator: Authenticator, renderer: Renderer, new_secret: Callable[[], str]
) -> APIRouter:
    """Return the routes under /jobs/new; `new_secret` names a submission, so that two clicks make one job."""
    router = APIRouter()

    def refuse_viewers(signed_in: SignedIn) -> SignedIn:
        if not signed_in.person.may_submit:
            raise Forbidden(
                f"{signed_in.person.name} may look at jobs, not submit one.",
                hint="Ask an administrator for a token of the role submitter.",
            )
        return signed_in

    def show(
        request: Request, signed_in: SignedIn, draft: Draft, reading: Reading, key: str, status: int = 200
    ) -> Response:
        problems, plan, idle = dict(reading.problems), None, 0
        spec, server_url = reading.spec, str(request.base_url).rstrip("/")
        if spec is not None and not problems:
            try:
                now = source.clock()
                agents = source.read(view_agents, now, source.timers)
                idle = sum(agent.state is AgentState.IDLE for agent in agents)
                plan = source.tuning.preview(preview_job(spec, signed_in.person, now), now)
            except InvalidJob as refusal:
                problems |= place_refusal(refusal)
        context = {
            "person": signed_in.person,
            "form_key": signed_in.form_key,
            "section": "jobs",
            "draft": draft,
            "problems": problems,
            "plan": plan,
            "idle": idle,
            "spec": spec,
            "yaml": write_yaml(spec) if spec is not None and plan is not None else "",
            "curl": write_curl(spec, server_url) if spec is not None and plan is not None else "",
            "kinds": list(WorkloadKind),
            "rungs": list(Allow),
            "offered": list_offered(),
            "samplers": get_args(OptunaSampler),
            "request_key": key,
        }
        return renderer.render(request, "new_job.html", context, status)

    @router.get("/jobs/new")
    def show_form(request: Request) -> Response:
        signed_in = refuse_viewers(authenticator.admit(request))
        return show(request, signed_in, Draft(), Reading(None), new_secret())

    @router.post("/jobs/new/plan")
    def show_plan(request: Request, sent: Annotated[_Sent, Depends(_take_form)]) -> Response:
        signed_in = refuse_viewers(authenticator.admit_form(request, sent.form_key))
        return show(request, signed_in, sent.draft, read_draft(sent.draft), sent.request_key or new_secret())

    @router.post("/jobs/new")
    def submit(request: Request, sent: Annotated[_Sent, Depends(_take_form)]) -> Response:
        signed_in = refuse_viewers(authenticator.admit_form(request, sent.form_key))
        reading = read_draft(sent.draft)
        if reading.spec is not None:
            try:
                key = sent.request_key or new_secret()
                job = source.change(submit_job, reading.spec, signed_in.person, key, source.clock())
                return RedirectResponse(f"/jobs/{job.id}", status_code=303)
            except InvalidJob as refusal:
                reading = Reading(reading.spec, place_refusal(refusal))
        return show(request, signed_in, sent.draft, reading, sent.request_key or new_secret(), 422)

    return router
