"""Routes of the page of tokens: the list, and making, rotating and revoking one. For administrators."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from advisor.dashboard.authenticator.access import Authenticator, SignedIn
from advisor.dashboard.rendering import Renderer
from advisor.dashboard.source import Source
from advisor.dashboard.views.server.site import ROLES
from advisor.errors import InvalidRequest
from advisor.protocol.views import CreatedToken, NewToken, Role, TokenRotation
from advisor.services import tokens

_AT_ONCE = 100
_DAY_S = 86_400.0
_HOUR_S = 3600.0
_MOST_DAYS = 3650

FormKey = Annotated[str, Form()]
Days = Annotated[float | None, Form(gt=0, le=_MOST_DAYS)]


def build_token_routes(source: Source, authenticator: Authenticator, renderer: Renderer) -> APIRouter:
    """Return the routes below /tokens."""
    router = APIRouter()

    def show(
        request: Request,
        signed_in: SignedIn,
        of: str = "",
        cursor: str | None = None,
        made: CreatedToken | None = None,
    ) -> Response:
        found = source.read(tokens.list_tokens, _AT_ONCE, cursor, of == "agents")
        context = {
            "person": signed_in.person,
            "form_key": signed_in.form_key,
            "section": "tokens",
            "tokens": found.items,
            "now": source.clock(),
            "of": "agents" if of == "agents" else "",
            "next_cursor": found.next_cursor,
            "made": made,
            "server_url": str(request.base_url).rstrip("/"),
            "roles": ROLES,
            "most_days": _MOST_DAYS,
        }
        return renderer.render(request, "tokens.html", context)

    @router.get("/tokens")
    def show_tokens(request: Request, of: str = "", cursor: str | None = None) -> Response:
        return show(request, authenticator.admit_administrator(request), of, cursor)

    @router.post("/tokens")
    def create_token(
        request: Request,
        form_key: FormKey = "",
        role: Annotated[Role, Form()] = Role.SUBMITTER,
        label: Annotated[str, Form(max_length=200)] = "",
        team: Annotated[str, Form(max_length=200)] = "",
        days: Days = None,
        uses: Annotated[int | None, Form(ge=1, le=1_000_000)] = None,
    ) -> Response:
        signed_in = authenticator.admit_administrator(request, form_key)
        if uses is not None and role is not Role.AGENT:
            raise InvalidRequest(
                "Only a token of the role agent counts the agents that it lets in.",
                hint="Leave that field empty, or choose the role agent.",
            )
        wanted = NewToken(
            role=role, label=label.strip(), team=team.strip(), expires_s=_seconds(days), uses=uses
        )
        # Answered at once: a secret is kept nowhere, and so shows on no other page.
        return show(request, signed_in, made=source.change(tokens.create_token, wanted, source.clock()))

    @router.post("/tokens/{token_id}/rotate")
    def rotate_token(
        request: Request,
        token_id: str,
        form_key: FormKey = "",
        hours: Annotated[float, Form(ge=0, le=24 * _MOST_DAYS)] = 1.0,
        days: Days = None,
    ) -> Response:
        signed_in = authenticator.admit_administrator(request, form_key)
        wanted = TokenRotation(grace_s=hours * _HOUR_S, expires_s=_seconds(days))
        made = source.change(tokens.rotate_token, token_id, wanted, source.clock())
        return show(request, signed_in, made=made)

    @router.post("/tokens/{token_id}/revoke")
    def revoke_token(request: Request, token_id: str, form_key: FormKey = "") -> Response:
        authenticator.admit_administrator(request, form_key)
        source.change(tokens.revoke_token, token_id, source.clock())
        return RedirectResponse("/tokens", status_code=303)

    return router


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * _DAY_S
