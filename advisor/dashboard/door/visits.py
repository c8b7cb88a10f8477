"""Who is signed in: visits, held in memory and named by a random cookie.

A visit keeps the token it was opened with and is checked against it on every request, so a revoked token ends its
visits at once. Nothing is stored: a restart of the server signs everybody out, and several replicas need sticky
routing.
"""

import hmac
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

IDLE = timedelta(hours=12)
MOST_VISITS = 1000


@dataclass
class Visit:
    """One signed-in browser."""

    token: str = field(repr=False)
    form_key: str = field(repr=False)
    """Sent with every form and compared when it comes back: another site cannot know it."""
    seen_at: datetime

    def accepts(self, form_key: str) -> bool:
        """Whether a form was made for this visit."""
        return hmac.compare_digest(self.form_key.encode(), form_key.encode())


class VisitBook:
    """The open visits."""

    def __init__(self, new_secret: Callable[[], str]) -> None:
        self._new_secret = new_secret
        self._visits: dict[str, Visit] = {}
        # Requests run in threads of their own.
        self._lock = threading.Lock()

    def open(self, token: str, now: datetime) -> str:
        """Open a visit and return the value of its cookie; the longest idle one makes room when there are too many."""
        key = self._new_secret()
        with self._lock:
            self._visits = {
                name: visit for name, visit in self._visits.items() if now - visit.seen_at <= IDLE
            }
            if len(self._visits) >= MOST_VISITS:
                del self._visits[min(self._visits, key=lambda name: self._visits[name].seen_at)]
            self._visits[key] = Visit(token, self._new_secret(), now)
        return key

    def find(self, key: str | None, now: datetime) -> Visit | None:
        """Return the visit of that cookie and mark it as seen; None when it is unknown or was idle too long."""
        with self._lock:
            visit = self._visits.get(key or "")
            if visit is None or key is None:
                return None
            if now - visit.seen_at > IDLE:
                del self._visits[key]
                return None
            visit.seen_at = now
            return visit

    def close(self, key: str | None) -> None:
        """End the visit of that cookie, if there is one."""
        with self._lock:
            self._visits.pop(key or "", None)
