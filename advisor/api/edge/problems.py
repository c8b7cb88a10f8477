"""Errors as problem documents (RFC 9457): type, title, status, detail, and our code and hint."""

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from advisor.api.edge.headers import SAFE_HEADERS
from advisor.api.edge.requests import REQUEST_ID, read_request_id
from advisor.errors import AdvisorError, InvalidRequest, NotFound
from advisor.protocol.base import Message

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_MAX_FINDINGS = 20
_MAX_REASON = 300

_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_RESPONSES = {
    "4XX": {"description": "It cannot be done: `code` says why, `hint` what to do.", "content": _CONTENT},
    "5XX": {"description": "The server failed or is busy: repeating it later is safe.", "content": _CONTENT},
}

_log = logging.getLogger(__name__)


class Finding(Message):
    """One field that breaks a rule."""

    field: str
    """Its place in the request, e.g. `body.budget.max_trials`."""
    reason: str
    """Which rule it breaks."""


class Problem(Message):
    """An error."""

    type: str
    """`urn:fleet-advisor:problem:<code>`."""
    title: str
    """The kind of error, in words."""
    status: int
    detail: str
    """What happened this time."""
    code: str
    """The kind of error, for programs."""
    hint: str = ""
    """What to do about it."""
    request_id: str = ""
    """The answer's X-Request-ID: the server's log has it in every line about this request."""
    errors: tuple[Finding, ...] = ()
    """Every field that breaks a rule, for invalid requests."""


def answer_with_problems(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""

    @app.exception_handler(AdvisorError)
    async def _known(_: Request, error: AdvisorError) -> JSONResponse:
        return build_problem(error.status, error.code, error.sentence, error.hint, error.headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _build_validation_problem(error.errors())

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        status = error.status_code
        code = re.sub(r"\W+", "_", HTTPStatus(status).phrase.lower())
        hint = NotFound.hint if status == 404 else ""
        detail = str(error.detail)
        sentence = detail if detail.endswith(".") else f"{detail}."
        return build_problem(status, code, sentence, hint, error.headers)

    @app.exception_handler(Exception)
    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        # What the exception says stays in the log: it may hold paths, addresses or parts of a query.
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return build_problem(
            500,
            "internal_error",
            "The server failed while it answered this request.",
            "Repeating the request is safe. If it fails again, the server's log says why: please report it.",
            # Every middleware has been left by now.
            SAFE_HEADERS,
        )


def document_problems(app: FastAPI) -> None:
    """Say in the OpenAPI document that every error is a problem document."""
    build = app.openapi

    def build_with_problems() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = build()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            described = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= described.pop("$defs") | {"Problem": described}
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
                    operation["responses"] |= _RESPONSES
        return app.openapi_schema or {}

    app.openapi = build_with_problems  # type: ignore[method-assign]


def serve_document(app: FastAPI) -> None:
    """Answer with the OpenAPI document from a thread of its own: it takes seconds to make, and everything else waits
    for what the event loop does itself."""
    turn = threading.Lock()

    def tell(_: Request) -> JSONResponse:
        with turn:
            return JSONResponse(app.openapi())

    others = [route for route in app.router.routes if getattr(route, "path", "") != app.openapi_url]
    app.router.routes[:] = [Route(app.openapi_url or "", tell, include_in_schema=False), *others]


class NothingThere:
    """An application for requests under the API that no route takes: otherwise the pages would answer in HTML."""

    def __init__(self, api: APIRouter) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 405 where another method is taken, and 404 elsewhere."""
        path, allowed = _shorten(scope["path"], _MAX_REASON), self._list_methods(scope)
        if allowed:
            named = ", ".join(allowed)
            detail = f"{path} takes {named}, not {_shorten(scope['method'], 60)}."
            answer = build_problem(405, "method_not_allowed", detail, NotFound.hint, {"Allow": named})
        else:
            answer = build_problem(404, NotFound.code, f"There is nothing at {path}.", NotFound.hint)
        await answer(scope, receive, send)

    def _list_methods(self, scope: Scope) -> list[str]:
        found = [
            (len(re.sub(r"{\w+}", "", route.path or "")), method)
            for method in _METHODS
            for route in iter_route_contexts(self._api.routes)
            if route.matches({**scope, "method": method})[0] is Match.FULL
        ]
        # `/jobs/{job_id}` takes the address of `/jobs/{job_id}:cancel` too, for a job of a strange name.
        most = max(found, default=(0, ""))[0]
        return [method for literal, method in found if literal == most]


def build_problem(
    status: int,
    code: str,
    detail: str,
    hint: str,
    headers: Mapping[str, str] | None = None,
    findings: Sequence[Finding] = (),
) -> JSONResponse:
    """Return an answer that holds a problem document."""
    request_id = read_request_id()
    problem = Problem(
        type=f"urn:fleet-advisor:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        hint=hint,
        request_id=request_id,
        errors=tuple(findings),
    )
    content = problem.model_dump(mode="json", exclude=set() if findings else {"errors"})
    named = dict(headers or {}) | ({REQUEST_ID: request_id} if request_id else {})
    return JSONResponse(content, status, named, "application/problem+json")


def _build_validation_problem(errors: Sequence[Mapping[str, Any]]) -> JSONResponse:
    # The input itself is never echoed: it may hold a secret, and NaN cannot be written as JSON.
    findings = [
        Finding(
            field=".".join(_shorten(str(part), 60) for part in error["loc"]),
            reason=_shorten(_explain(error), _MAX_REASON),
        )
        for error in errors[:_MAX_FINDINGS]
    ]
    named = "; ".join(f"{finding.field}: {finding.reason}" for finding in findings)
    if len(errors) > _MAX_FINDINGS:
        named += f"; and {len(errors) - _MAX_FINDINGS} more"
    return build_problem(422, InvalidRequest.code, f"{named}.", InvalidRequest.hint, findings=findings)


def _explain(error: Mapping[str, Any]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    return message.encode("utf-8", "replace").decode()


def _shorten(text: str, limit: int) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
