"""Routes beside the jobs: agents, the knob catalogue, and the page of components."""

from collections.abc import Callable, Mapping
from datetime import datetime

from fastapi import APIRouter, Request
from starlette.responses import Response

from advisor.dashboard.components import sample_components
from advisor.dashboard.door.access import Door
from advisor.dashboard.rendering import Renderer
from advisor.dashboard.source import Source
from advisor.dashboard.views.server.site import view_agents, view_knobs

_REFRESH_S = 10


def build_site_routes(
    source: Source, door: Door, renderer: Renderer, clock: Callable[[], datetime]
) -> APIRouter:
    """Return the routes /agents, /knobs and /style."""
    router = APIRouter()

    def show(request: Request, name: str, section: str, context: Mapping[str, object]) -> Response:
        guest = door.admit(request)
        known = {"person": guest.person, "form_key": guest.form_key, "section": section}
        return renderer.render(request, name, {**known, **context})

    @router.get("/agents")
    def show_agents(request: Request) -> Response:
        door.admit(request)
        context = {
            "agents": view_agents(source.agents(), clock()),
            "server_url": str(request.base_url).rstrip("/"),
            "refresh_s": _REFRESH_S,
        }
        return show(request, "agents.html", "agents", context)

    @router.get("/knobs")
    def show_knobs(request: Request) -> Response:
        return show(request, "knobs.html", "knobs", {"groups": view_knobs()})

    @router.get("/style")
    def show_style(request: Request) -> Response:
        return show(request, "style.html", "", sample_components(clock()))

    return router
