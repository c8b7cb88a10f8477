"""Requests that could be read on the way, because they came from elsewhere without TLS, are refused with 403."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

from advisor.api.edge.problems import build_problem


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
