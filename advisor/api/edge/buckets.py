"""How fast one token may ask: a bucket of requests for each, filled again as time passes."""

import math
import threading
from collections.abc import Callable

from advisor.errors import TooManyRequests

_MOST_KEPT = 4096
"""Buckets that are kept before those that are full again are forgotten: a full one is as good as none."""


class Buckets:
    """Buckets by token, of this server alone; share it between threads."""

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
