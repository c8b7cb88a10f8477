"""An open-loop load: requests leave when they are due, whether earlier ones were answered or not.

Time counts from the moment a request was due, so that a server which stalls is charged for all that waits for it (no
coordinated omission). Connections are kept; a request whose connection still waits for an answer waits in line on it.
Nothing but a response's status and length is read: the generator shares the processors with the server.
"""

import asyncio
import json
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")


@dataclass
class Load:
    """What came of the requests of one load."""

    times_ms: list[float] = field(default_factory=list)
    """From when each answered request was due to its answer's last byte."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Answers by status; 0 for a connection that was lost."""

    def percentile_ms(self, share: float) -> float:
        """Return the time within which this share of the requests was answered."""
        ranked = sorted(self.times_ms)
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else math.inf

    @property
    def failed(self) -> int:
        """Requests that were not answered with a 2xx."""
        return sum(count for status, count in self.statuses.items() if not 200 <= status < 300)

    def describe(self) -> str:
        """Return the percentiles and what failed, in words."""
        failed = f", {self.failed} failed {dict(self.statuses)}" if self.failed else ""
        return (
            f"{len(self.times_ms)} requests, p50 {self.percentile_ms(0.5):.1f} ms, "
            f"p99 {self.percentile_ms(0.99):.1f} ms, longest {self.percentile_ms(1):.1f} ms{failed}"
        )


class Line(asyncio.Protocol):
    """One kept connection, made when there is something to send; its requests are sent one after the other."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[bytes, Callable[[int], None]]] = deque()
        self._asked: Callable[[int], None] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._read = b""

    def ask(self, request: bytes, tell: Callable[[int], None]) -> None:
        """Send a request as soon as those before it are answered; `tell` gets the status, 0 for a lost connection."""
        self._waiting.append((request, tell))
        self._send()

    def data_received(self, data: bytes) -> None:
        """Read on; where the answer is complete, tell so."""
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found or self._asked is None:
            return
        fields = head.lower()
        length = _LENGTH.search(fields)
        if length is None or len(body) >= int(length[1]):
            self._read = b""
            if b"\r\nconnection: close" in fields and self._transport is not None:
                self._transport.close()
            self._answer(int(head[9:12]))

    def connection_lost(self, _: Exception | None) -> None:
        """What was asked has no answer; what comes next makes another connection."""
        self._transport, self._read = None, b""
        self._answer(0)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, status: int) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked(status)
        self._send()

    def _send(self) -> None:
        if self._asked is not None or not self._waiting:
            return
        if self._transport is not None and self._transport.is_closing():
            return
        request, self._asked = self._waiting.popleft()
        if self._transport is not None:
            self._transport.write(request)
        else:
            self._connecting = asyncio.ensure_future(self._connect(request))

    async def _connect(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
            self._transport.write(request)
        except OSError:
            self._answer(0)


def write_request(path: str, token: str, body: object) -> bytes:
    """Return a POST as it goes over the wire."""
    content = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def offer(due: Sequence[tuple[float, Line, bytes]], load: Load) -> None:
    """Send every request when it is due, in seconds from now, and note how it went until the last is answered."""
    loop = asyncio.get_running_loop()
    # uvloop's own clock counts whole milliseconds, and stands still while it serves what has come.
    start_s, left, all_told = time.perf_counter(), len(due), loop.create_future()

    def note(due_s: float, status: int) -> None:
        nonlocal left
        load.statuses[status] += 1
        if status:
            load.times_ms.append(1000 * (time.perf_counter() - due_s))
        left -= 1
        if left == 0:
            all_told.set_result(None)

    for after_s, line, request in due:
        if (wait_s := start_s + after_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        line.ask(request, partial(note, start_s + after_s))
    if due:
        await all_told
