"""What one token may take (requests a second, streams held open), and how large one request's body may be."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.api.edge.problems import build_problem
from advisor.errors import TooManyRequests, TooManyStreams
from advisor.protocol.measured.messages import MOST_MESSAGE_BYTES

_MOST_KEPT = 4096
"""Buckets that are kept before those that are full again are forgotten: a full one is as good as none."""


class Buckets:
    """Buckets by token or address, of this server alone; share it between threads."""

    def __init__(self, per_s: float, at_once: int, elapsed: Callable[[], float]) -> None:
        """Each bucket holds `at_once` requests; `elapsed` is a monotonic clock of seconds."""
        self._per_s, self._at_once, self._elapsed = per_s, at_once, elapsed
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}
        """Token -> the requests that were left in its bucket, and when."""

    def take(self, token_id: str) -> None:
        """Take one request out of a token's bucket. Raises TooManyRequests when it is empty."""
        with self._lock:
            now_s = self._elapsed()
            left = self._count(token_id, now_s)
            if left < 1:
                raise TooManyRequests(self._per_s, max(1, math.ceil((1 - left) / self._per_s)))
            self._buckets[token_id] = left - 1, now_s
            if len(self._buckets) > _MOST_KEPT:
                self._forget_full(now_s)

    def _count(self, token_id: str, now_s: float) -> float:
        left, since_s = self._buckets.get(token_id, (float(self._at_once), now_s))
        return min(float(self._at_once), left + (now_s - since_s) * self._per_s)

    def _forget_full(self, now_s: float) -> None:
        self._buckets = {
            token_id: bucket
            for token_id, bucket in self._buckets.items()
            if self._count(token_id, now_s) < self._at_once
        }


class Streams:
    """Streams that are open, by token, of this server alone; for the tasks of one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, token_id: str) -> Iterator[None]:
        """Count one for as long as it is open. Raises TooManyStreams where the token holds as many as it may."""
        if self._open[token_id] >= self._most:
            raise TooManyStreams(self._most)
        self._open[token_id] += 1
        try:
            yield
        finally:
            self._open[token_id] -= 1
            if not self._open[token_id]:
                del self._open[token_id]


class SizeCheck:
    """Middleware that stops reading a request's body at the limit."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        too_large = length.isdigit() and (len(length) > 15 or int(length) > MOST_MESSAGE_BYTES)
        read = 0

        async def receive_within_limit() -> Message:
            nonlocal read, too_large
            message = await receive()
            read += len(message.get("body", b""))
            too_large = too_large or read > MOST_MESSAGE_BYTES
            # To the application it looks as if the client had gone; what it answers then is not sent.
            return {"type": "http.disconnect"} if too_large else message

        async def send_unless_too_large(message: Message) -> None:
            if not too_large:
                await send(message)

        if not too_large:
            with suppress(ClientDisconnect):
                await self.app(scope, receive_within_limit, send_unless_too_large)
        if too_large:
            detail = f"The request's body has more than {MOST_MESSAGE_BYTES} bytes."
            await build_problem(413, "content_too_large", detail, "Send less at once.")(scope, receive, send)
