"""Routes beside the jobs: agents, to be drained, resumed and removed; the knob catalogue."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from advisor.dashboard.authenticator.access import Authenticator
from advisor.dashboard.rendering import Renderer
from advisor.dashboard.source import Source
from advisor.dashboard.views.server.site import group_knobs, order_agents
from advisor.services import agents

_REFRESH_S = 10

FormKey = Annotated[str, Form()]


def build_site_routes(source: Source, authenticator: Authenticator, renderer: Renderer) -> APIRouter:
    """Return the routes /agents and /knobs."""
    router = APIRouter()

    def show(request: Request, name: str, section: str, context: Mapping[str, object]) -> Response:
        signed_in = authenticator.admit(request)
        known = {"person": signed_in.person, "form_key": signed_in.form_key, "section": section}
        return renderer.render(request, name, {**known, **context})

    @router.get("/agents")
    def show_agents(request: Request) -> Response:
        authenticator.admit(request)
        now = source.clock()
        context = {
            "agents": order_agents(source.read(agents.view_agents, now, source.timers)),
            "now": now,
            "server_url": str(request.base_url).rstrip("/"),
            "refresh_s": _REFRESH_S,
        }
        return show(request, "agents.html", "agents", context)

    @router.post("/agents/{agent_id}/drain")
    def drain_agent(
        request: Request,
        agent_id: str,
        form_key: FormKey = "",
        reason: Annotated[str, Form(max_length=500)] = "",
    ) -> Response:
        person = authenticator.admit_administrator(request, form_key).person
        source.change(agents.drain_agent, agent_id, reason.strip() or f"Drained by {person.name}.")
        return RedirectResponse("/agents", status_code=303)

    @router.post("/agents/{agent_id}/resume")
    def resume_agent(request: Request, agent_id: str, form_key: FormKey = "") -> Response:
        authenticator.admit_administrator(request, form_key)
        source.change(agents.resume_agent, agent_id)
        return RedirectResponse("/agents", status_code=303)

    @router.post("/agents/{agent_id}/remove")
    def remove_agent(request: Request, agent_id: str, form_key: FormKey = "") -> Response:
        authenticator.admit_administrator(request, form_key)
        source.change(agents.remove_agent, agent_id, source.clock())
        return RedirectResponse("/agents", status_code=303)

    @router.get("/knobs")
    def show_knobs(request: Request) -> Response:
        return show(request, "knobs.html", "knobs", {"groups": group_knobs()})

    return router
