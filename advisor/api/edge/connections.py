"""Connections: a client that is too slow, or one too many, is hung up on, so that it cannot keep others out.

uvicorn waits for ever for the rest of a header or of a body, and for a reader that does not read.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from advisor.protocol.measured.messages import MOST_MESSAGE_BYTES

HEADER_S = 10.0
"""Time for a request's line and headers, from the connection or from their first byte."""
BODY_S = 30.0
"""Time for a request's body, and for a reader to take what waits for it."""
MOST_HEADER_BYTES = 64 * 1024
"""Largest request line and headers; a header that ends in the same part of a read that goes beyond it is taken."""
MOST_BYTES = 8 * MOST_MESSAGE_BYTES
"""Largest request in all, with what encodes its body."""
_LATER = b"retry-after: 5\r\n"
_LOOK_AGAIN_S = 0.001
_FILES_KEPT = 256
"""Open files that are not connections: the database, logs, the web's files."""
_OWN_BITS = 64
"""Of an IPv6 address: whoever has one has all that share these."""

_Network = IPv4Network | IPv6Network


class LimitedConnection(HttpToolsProtocol):
    """One connection, with deadlines; `limit_connections` sets the limits."""

    header_s: ClassVar[float] = HEADER_S
    body_s: ClassVar[float] = BODY_S
    most: ClassVar[int] = 4096
    most_each: ClassVar[int] = 2048
    """From one address that is none of `plain_from`: a proxy stands for many."""
    held: ClassVar[Counter[_Network]] = Counter()
    """Connections by address, of this server alone."""
    plain_from: ClassVar[tuple[_Network, ...]] = ()
    """Networks, besides loopback, that may come without TLS."""
    _counted_as: _Network | None = None
    _deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _header_bytes: int | None = 0
    """Bytes of a header that is being read; None between the header's end and the next request."""
    _message_bytes: int = 0
    """Bytes since the request began, whatever they are."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it where there are too many, or where what it carries could be read."""
        super().connection_made(transport)
        if self.scheme == "http" and not self._may_be_plain():
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        if self._count() > self.most_each:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, _LATER)
            return
        if len(self.connections) > self.most:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, _LATER)
            return
        self._expect(self.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._expect(None)
        self._count_out()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as neither the header nor the whole message grows beyond its limit.

        The whole has more than the body's limit: what lies between the parts of a body is counted as well, and a body
        that is only a little too large is answered in words.
        """
        for start in range(0, len(data), MOST_HEADER_BYTES):
            if self.transport.is_closing():
                return
            part = data[start : start + MOST_HEADER_BYTES]
            self._message_bytes += len(part)
            if self._header_bytes is not None:
                self._header_bytes += len(part)
            super().data_received(part)
            if self._header_bytes is not None and self._header_bytes > MOST_HEADER_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            elif self._message_bytes > MOST_BYTES:
                self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body (trailers) tell nothing that anybody asks for."""
        if self._header_bytes is not None:
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        """A request begins: its header is due."""
        self._header_bytes = self._message_bytes = 0
        self._expect(self.header_s)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The header has come: the body is due."""
        self._header_bytes = None
        self._expect(self.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request has come in full."""
        self._expect(None)
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Hang up on a connection that lay idle, after one more look: its next request may have come meanwhile.

        A loop that was held up runs its timers before it reads, and would throw away what has arrived in time.
        """
        self.timeout_keep_alive_task = self.loop.call_later(_LOOK_AGAIN_S, super().timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        """The client does not read what it is sent: that is due too."""
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(self.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        super().resume_writing()

    def _find_peer(self) -> IPv4Address | IPv6Address | None:
        if self.client is None:
            return None
        peer = ip_address(self.client[0].partition("%")[0])
        return getattr(peer, "ipv4_mapped", None) or peer

    def _may_be_plain(self) -> bool:
        peer = self._find_peer()
        return peer is None or peer.is_loopback or self._is_trusted(peer)

    def _is_trusted(self, peer: IPv4Address | IPv6Address) -> bool:
        return any(peer in network for network in self.plain_from)

    def _count(self) -> int:
        """Count this connection to its address; return how many that holds now, 0 where they are not counted."""
        peer = self._find_peer()
        if peer is None or self._is_trusted(peer):
            return 0
        own = peer if peer.version == 4 else f"{peer}/{_OWN_BITS}"
        self._counted_as = ip_network(own, strict=False)
        self.held[self._counted_as] += 1
        return self.held[self._counted_as]

    def _count_out(self) -> None:
        if self._counted_as is not None:
            self.held[self._counted_as] -= 1
            if not self.held[self._counted_as]:
                del self.held[self._counted_as]
            self._counted_as = None

    def _expect(self, within_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if within_s is None else self.loop.call_later(within_s, self._be_late)

    def _be_late(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, status: HTTPStatus, headers: bytes = b"") -> None:
        """Hang up, with an answer where none has begun."""
        self._expect(None)
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            line = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
            self.transport.write(line + headers + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()


def limit_connections(
    most: int,
    plain_from: Sequence[str] = (),
    header_s: float = HEADER_S,
    body_s: float = BODY_S,
    most_each: int = 0,
) -> type[LimitedConnection]:
    """Return the protocol for a server that holds at most `most` connections, and `most_each` from one address.

    `plain_from`: the networks, besides loopback, whose connections need no TLS, and are not counted by address.
    `most_each` 0: half of `most`, so that no address alone keeps all others out.
    """
    limits = {
        "most": most,
        "most_each": most_each or max(1, most // 2),
        "held": Counter(),
        "plain_from": tuple(ip_network(network) for network in plain_from),
        "header_s": header_s,
        "body_s": body_s,
    }
    return type("LimitedConnection", (LimitedConnection,), limits)


def make_room_for(connections: int) -> int:
    """Raise this process's limit of open files as far as that many connections need; return how many have room."""
    wanted = connections + _FILES_KEPT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, soft - _FILES_KEPT))
