"""A server that stands by for another one: it answers that it does, and nothing else."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from advisor.api.edge.problems import build_problem
from advisor.errors import Standby

_ALWAYS_ANSWERED = frozenset({"/livez", "/readyz", "/metrics"})


class StandbyCheck:
    """Middleware that answers 503 while this server is not the active one."""

    def __init__(self, app: ASGIApp, is_active: Callable[[], bool]) -> None:
        self.app, self._is_active = app, is_active

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 503."""
        if scope["type"] != "http" or scope["path"] in _ALWAYS_ANSWERED or self._is_active():
            await self.app(scope, receive, send)
            return
        error = Standby()
        problem = build_problem(error.status, error.code, error.sentence, error.hint, error.headers)
        await problem(scope, receive, send)
