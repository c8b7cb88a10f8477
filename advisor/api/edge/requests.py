"""Every request: its id, what its log lines are about, its own line in the log, and its share of the metrics."""

import logging
import random
import re
import time
from collections.abc import Callable

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, clear_contextvars, get_contextvars

from advisor.logs import REQUESTS
from advisor.services.metrics import Metrics

REQUEST_ID = "X-Request-ID"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_NAMED = ("job_id", "session_id", "agent_id")
PREFIX = "/api/v1"
"""What the addresses of the API begin with."""

_log = logging.getLogger(REQUESTS)


def make_request_id() -> str:
    """Return a random id for a request that came without one: a name, no secret."""
    # The kernel's own randomness would let another thread have the interpreter, at each request.
    return f"{random.getrandbits(64):016x}"


def read_request_id() -> str:
    """Return the id of the request that is being answered; empty outside of one."""
    return str(get_contextvars().get("request_id", ""))


class RequestWatch:
    """Middleware around all others, so that what they refuse is seen too."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        new_id: Callable[[], str] = make_request_id,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.app = app
        self._metrics, self._new_id, self._now_s = metrics, new_id, now_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note how it went."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _WELL_FORMED.fullmatch(given) else self._new_id()
        # Bound until this task ends: the answer to an unforeseen error is made further out than this.
        clear_contextvars()
        bind_contextvars(request_id=request_id)
        began_s, status = self._now_s(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            status = status or 500
            raise
        finally:
            self._note(scope, status, self._now_s() - began_s)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        state = scope.get("state", {})
        route = find_template(scope)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        if state.get("is_in_progress"):
            self._metrics.end_request(method, route)
        self._metrics.note_request(method, route, status, seconds)
        # Never the address itself, which holds what a client typed: only the template and its well-known parts.
        _log.log(
            logging.WARNING if status >= 500 else logging.INFO,
            "request",
            extra={
                "method": method,
                "route": route,
                "status": status,
                "seconds": round(seconds, 6),
            }
            | ({"principal": state["principal"]} if "principal" in state else {}),
        )


def note_route(request: Request) -> None:
    """Note of a request that a route of the API takes what its log lines are about, and that it is being answered."""
    named, metrics = request.path_params, request.app.state.context.metrics
    about = {name: value for name in _NAMED if (value := named.get(name)) and _WELL_FORMED.fullmatch(value)}
    bind_contextvars(**about)
    metrics.begin_request(request.method, find_template(request.scope))
    request.state.is_in_progress = True


def find_template(scope: Scope) -> str:
    """Return the route that takes a request, as it is declared; `other` where none does: addresses have no bound."""
    path = str(getattr(scope.get("route"), "path", "") or "other")
    # A route of an included router names its own part only.
    is_part = scope["path"].startswith(f"{PREFIX}/") and path.startswith("/") and not path.startswith(PREFIX)
    return f"{PREFIX}{path}" if is_part else path
