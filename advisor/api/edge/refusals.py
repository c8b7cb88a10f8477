"""Requests that no route sees: under a foreign host name, or unencrypted from elsewhere."""

from collections.abc import Collection, Sequence
from ipaddress import ip_address, ip_network

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


class EncryptionCheck:
    """Middleware that takes plain HTTP from loopback and trusted networks only.

    It stands outside of what believes proxies whom they speak for: it has to see who really connected.
    """

    def __init__(self, app: ASGIApp, plain_from: Sequence[str]) -> None:
        """`plain_from`: the networks, besides loopback, whose requests need no TLS."""
        self.app = app
        self._plain_from = [ip_network(network) for network in plain_from]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] != "http" or scope["scheme"] == "https" or self._may_be_plain(scope["client"]):
            await self.app(scope, receive, send)
            return
        detail = "The request came over the network unencrypted."
        hint = "Use the server's https address."
        await build_problem(403, "unencrypted", detail, hint)(scope, receive, send)

    def _may_be_plain(self, client: tuple[str, int] | None) -> bool:
        if client is None:
            return True
        peer = ip_address(client[0].partition("%")[0])
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return peer.is_loopback or any(peer in network for network in self._plain_from)
