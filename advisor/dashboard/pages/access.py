"""Routes that open and close a visit, and the one that sets the theme."""

from collections.abc import Callable
from typing import Annotated
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from advisor.dashboard.authenticator.access import Authenticator
from advisor.dashboard.rendering import THEME_COOKIE, THEMES, Renderer

_YEAR_S = 365 * 24 * 3600


def keep_local(target: str) -> str:
    """Return `target` when it is a path on this server, else the list of jobs: a link must not lead elsewhere."""
    try:
        parts = urlsplit(target)
    except ValueError:  # half an IPv6 address
        return "/jobs"
    local = (
        target.startswith("/")
        and not target.startswith(("//", "/\\"))
        and not parts.netloc
        and not parts.scheme
    )
    return target if local and target.isprintable() else "/jobs"


def address_login(request: Request) -> str:
    """Return the address of the sign-in page that leads back to this one."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return "/login" if request.method != "GET" or path == "/" else f"/login?next={quote(path, safe='')}"


def build_access_routes(
    authenticator: Authenticator, renderer: Renderer, count_failure: Callable[[str], None]
) -> APIRouter:
    """Return the routes /login, /enter, /logout and /theme; `count_failure` is told where a wrong token came from."""
    router = APIRouter()

    @router.get("/login")
    def show_login(request: Request, next: str = "/jobs") -> Response:
        if authenticator.recognise(request) is not None:
            return RedirectResponse(keep_local(next), status_code=303)
        return renderer.render(request, "login.html", {"next": keep_local(next), "problem": ""})

    @router.get("/enter/{secret}")
    def enter(request: Request, secret: str, next: str = "/jobs") -> Response:
        response = RedirectResponse(keep_local(next), status_code=303)
        if authenticator.recognise(request) is not None or authenticator.enter(request, response, secret):
            return response
        count_failure(request.client.host if request.client else "unknown")
        problem = "The link has been used, or is older than ten minutes."
        return renderer.render(request, "login.html", {"next": keep_local(next), "problem": problem}, 401)

    @router.post("/login")
    def sign_in(
        request: Request,
        token: Annotated[str, Form(max_length=300)] = "",
        next: Annotated[str, Form()] = "/jobs",
    ) -> Response:
        response = RedirectResponse(keep_local(next), status_code=303)
        if authenticator.sign_in(request, response, token.strip()):
            return response
        if token.strip():
            count_failure(request.client.host if request.client else "unknown")
        problem = (
            "No person has this token."
            if token.strip()
            else "The field is empty: paste a token that starts with adv_."
        )
        return renderer.render(request, "login.html", {"next": keep_local(next), "problem": problem}, 401)

    @router.post("/logout")
    def sign_out(request: Request, form_key: Annotated[str, Form()] = "") -> Response:
        authenticator.admit_form(request, form_key)
        response = RedirectResponse("/login", status_code=303)
        authenticator.sign_out(request, response)
        return response

    @router.post("/theme")
    def set_theme(theme: Annotated[str, Form()] = "auto", next: Annotated[str, Form()] = "/jobs") -> Response:
        response = RedirectResponse(keep_local(next), status_code=303)
        # Readable by the page's script, which switches without a reload; it is no secret.
        response.set_cookie(
            THEME_COOKIE, theme if theme in THEMES else "auto", max_age=_YEAR_S, samesite="strict"
        )
        return response

    return router
