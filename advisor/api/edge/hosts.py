"""Host names that the server answers for: a page elsewhere that rebinds its name to this machine gets a 421."""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from advisor.api.edge.problems import build_problem
from advisor.errors import WrongHost

ALWAYS_ALLOWED = frozenset({"localhost", "127.0.0.1", "[::1]"})


class HostCheck:
    """Middleware that refuses requests whose Host is not on the list, or that name several."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self.app = app
        self._allowed = ALWAYS_ALLOWED | {name.lower() for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 421."""
        if scope["type"] not in {"http", "websocket"} or self._is_allowed(scope):
            await self.app(scope, receive, send)
            return
        error = WrongHost("This server does not answer for the host that the request names.")
        await build_problem(error.status, error.code, error.sentence, error.hint)(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        hosts = Headers(scope=scope).getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return name in self._allowed
