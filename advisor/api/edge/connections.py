"""Connections: a client that is too slow, or one too many, is hung up on, so that it cannot keep others out.

uvicorn waits for ever for the rest of a header or of a body, and for a reader that does not read.
"""

import asyncio
import resource
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
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
_LOOK_AGAIN_S = 0.001
_FILES_KEPT = 256
"""Open files that are not connections: the database, logs, the web's files."""


class LimitedConnection(HttpToolsProtocol):
    """One connection, with deadlines; `limit_connections` sets the limits."""

    header_s: ClassVar[float] = HEADER_S
    body_s: ClassVar[float] = BODY_S
    most: ClassVar[int] = 4096
    plain_from: ClassVar[tuple[IPv4Network | IPv6Network, ...]] = ()
    """Networks, besides loopback, that may come without TLS."""
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
        if len(self.connections) > self.most:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, b"retry-after: 5\r\n")
            return
        self._expect(self.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._expect(None)
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

    def _may_be_plain(self) -> bool:
        if self.client is None:
            return True
        peer = ip_address(self.client[0].partition("%")[0])
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return peer.is_loopback or any(peer in network for network in self.plain_from)

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
    most: int, plain_from: Sequence[str] = (), header_s: float = HEADER_S, body_s: float = BODY_S
) -> type[LimitedConnection]:
    """Return the protocol for a server that holds at most `most` connections.

    `plain_from`: the networks, besides loopback, whose connections need no TLS.
    """
    networks = tuple(ip_network(network) for network in plain_from)
    limits = {"most": most, "plain_from": networks, "header_s": header_s, "body_s": body_s}
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
