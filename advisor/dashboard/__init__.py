"""The dashboard: HTML over HTTP, as an application to mount at `/`, behind everything else that a server has."""

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from advisor.dashboard.authenticator.access import Authenticator, SignInNeeded
from advisor.dashboard.authenticator.guards import SafeHeaders, refuse_other_sites
from advisor.dashboard.pages.access import address_login, build_access_routes
from advisor.dashboard.pages.job import build_view_routes
from advisor.dashboard.pages.jobs import build_job_routes
from advisor.dashboard.pages.new_job import build_new_job_routes
from advisor.dashboard.pages.site import build_site_routes
from advisor.dashboard.pages.tokens import build_token_routes
from advisor.dashboard.rendering import Renderer, find_plotly, find_web
from advisor.dashboard.source import Source
from advisor.errors import AdvisorError

__all__ = ["Source", "build_pages"]


class _LongLived(StaticFiles):
    """Static files under addresses that change with their content."""

    def file_response(self, full_path: str | Path, *args: object, **kwargs: object) -> Response:  # type: ignore[override]
        response = super().file_response(full_path, *args, **kwargs)  # type: ignore[arg-type]
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Serve only what the pages load: plotly's folder holds more than its script."""
        if path.endswith((".js", ".css", ".svg")):
            return await super().get_response(path, scope)
        raise HTTPException(404)


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


def _never() -> bool:
    return False


def _no_link(_: str) -> None:
    return


def _count_nothing(_: str) -> None:
    return


def build_pages(
    source: Source,
    new_secret: Callable[[], str] = _new_secret,
    is_stopping: Callable[[], bool] = _never,
    count_failure: Callable[[str], None] = _count_nothing,
    hold_stream: Callable[[str], AbstractContextManager[object]] = nullcontext,
    take_link: Callable[[str], str | None] = _no_link,
) -> ASGIApp:
    """Return the pages: an application of their own, so that their headers, sign-in and error pages miss the API.

    `new_secret` returns a fresh unguessable string;
    `is_stopping` says that the server wants to end, so that live streams end first;
    `count_failure` is told the address that a wrong token came from, and raises TooManyFailures when it is too much;
    `hold_stream` holds one of the streams that a token may have open, and raises TooManyStreams when it has them all;
    `take_link` returns the token that the secret of a one-time link stands for.
    """
    web = find_web()
    renderer = Renderer(web)
    authenticator = Authenticator(source, new_secret, take_link)
    pages = FastAPI(
        title="Fleet Advisor dashboard",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(refuse_other_sites)],
    )
    # A page's secret is its form's key; no other site can make a browser ask with its cookie, and so measure lengths.
    pages.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    pages.mount("/static", _LongLived(directory=web / "static"))
    pages.mount("/plotly", _LongLived(directory=find_plotly()))
    pages.include_router(build_access_routes(authenticator, renderer, count_failure))
    pages.include_router(build_job_routes(source, authenticator, renderer, is_stopping, hold_stream))
    # Before the job's own views: `new` is no job's id.
    pages.include_router(build_new_job_routes(source, authenticator, renderer, new_secret))
    pages.include_router(build_view_routes(source, authenticator, renderer))
    pages.include_router(build_site_routes(source, authenticator, renderer))
    pages.include_router(build_token_routes(source, authenticator, renderer))
    _add_error_pages(pages, authenticator, renderer)
    # Around everything, so that the page of a failure carries the headers too.
    return SafeHeaders(pages)


def _add_error_pages(pages: FastAPI, authenticator: Authenticator, renderer: Renderer) -> None:
    def show(request: Request, status: int, sentence: str, hint: str) -> Response:
        signed_in = None
        if status < 500:
            signed_in = authenticator.recognise(request)
        context: dict[str, object] = {"status": status, "sentence": sentence, "hint": hint}
        if signed_in is not None:
            context |= {"person": signed_in.person, "form_key": signed_in.form_key}
        return renderer.render(request, "error.html", context, status)

    @pages.exception_handler(SignInNeeded)
    def send_to_login(request: Request, _: Exception) -> Response:
        if request.url.path.endswith("/live"):
            return Response("Sign in first.", status_code=401)
        return RedirectResponse(address_login(request), status_code=303)

    @pages.exception_handler(AdvisorError)
    def show_advisor_error(request: Request, error: AdvisorError) -> Response:
        answer = show(request, error.status, error.sentence, error.hint)
        answer.headers.update(error.headers)
        return answer

    @pages.exception_handler(RequestValidationError)
    def show_bad_request(request: Request, _: Exception) -> Response:
        return show(
            request,
            422,
            "This address holds a value that does not fit.",
            "Follow a link from the list of jobs.",
        )

    @pages.exception_handler(UnicodeEncodeError)
    def show_bad_text(request: Request, _: Exception) -> Response:
        # A form may name a character set in which halves of characters are legal.
        return show(
            request, 422, "The form holds text that cannot be written.", "Go back, and send it from the page."
        )

    @pages.exception_handler(HTTPException)
    def show_http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return show(request, 404, "There is no page at this address.", "Start from the list of jobs.")
        return show(request, error.status_code, str(error.detail), "Start from the list of jobs.")

    @pages.exception_handler(Exception)
    def show_failure(request: Request, _: Exception) -> Response:
        hint = "Try again in a moment; the server's log says what went wrong. Running jobs are not affected."
        return show(request, 500, "The server failed while it built this page.", hint)
