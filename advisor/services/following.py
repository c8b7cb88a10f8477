"""Follows a job for one who watches it: its events as they happen, until the job is over or the token ends.

For the tasks of one event loop. A look, in a thread, happens when something happened to the job or to a token, or when
the last one is old; else it would cost each open stream a query for every tick.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from starlette.concurrency import run_in_threadpool

from advisor.errors import JobNotFound
from advisor.protocol.views import JobEvent
from advisor.services.jobs import get_job
from advisor.services.tokens import Principal, still_counts
from advisor.storage import Database
from advisor.storage.notifier import story_of

PAGE = 500
"""Events that are read, and sent, at once."""
_LEAST_REST_S = 0.1
"""Between two looks of one stream: many things may happen at once."""
_MOST_REST_S = 10.0
"""Between two looks at a job of which every change is heard."""


class Follower:
    """One stream's place in a job's story."""

    def __init__(
        self, database: Database, clock: Callable[[], datetime], job_id: str, principal: Principal, after: int
    ) -> None:
        self._database, self._clock = database, clock
        self._job_id, self._principal = job_id, principal
        self._changed = asyncio.Event()
        self._looked_at_s = 0.0
        self._tokens: object | None = None
        """The stamp that all tokens had at the last look."""
        self._version: int | None = None
        """The job's, once everything that it tells was taken."""
        self.after = after
        """Number of the last event that was taken."""
        self.is_over = False
        """Whether the job has ended and everything was taken."""

    def ring(self) -> None:
        """Something happened to the job."""
        self._changed.set()

    async def take(self) -> list[JobEvent] | None:
        """Return the next events, at most PAGE; [] when there are none now, None when the token opens nothing now.

        Raises JobNotFound, Unavailable.
        """
        expires_at = self._principal.expires_at
        if expires_at is not None and expires_at <= self._clock():
            return None
        now_s = asyncio.get_running_loop().time()
        is_due = (
            self._version is None or self._changed.is_set() or self._database.tokens_stamp is not self._tokens
        )
        if not is_due and now_s < self._looked_at_s + _MOST_REST_S:
            return []
        self._changed.clear()
        self._looked_at_s, self._tokens = now_s, self._database.tokens_stamp
        return await run_in_threadpool(self._look)

    async def wait(self, timeout_s: float) -> None:
        """Wait until something happened since the last `take`, or the time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
            rest_s = self._looked_at_s + _LEAST_REST_S - asyncio.get_running_loop().time()
            await asyncio.sleep(min(max(0.0, rest_s), timeout_s))

    def _look(self) -> list[JobEvent] | None:
        with self._database.read() as work:
            if not still_counts(work, self._principal, self._clock()):
                return None
            # The version first, then the state: what comes after this look is found by the next one.
            version = work.jobs.version(self._job_id)
            if version is None:
                raise JobNotFound(f"There is no job {self._job_id}.")
            if version == self._version:
                return []
            has_ended = get_job(work, self._job_id).state.is_final
            newest = work.events.newest(self._job_id) or 0
            # A stream may name a number that no event has yet.
            self.after = min(self.after, newest)
            events = work.events.after(self._job_id, self.after, PAGE)
        if events:
            self.after = events[-1].seq
        is_all = self.after >= newest
        self._version, self.is_over = version if is_all else None, is_all and has_ended
        return events


@contextmanager
def follow(
    database: Database, clock: Callable[[], datetime], job_id: str, principal: Principal, after: int
) -> Iterator[Follower]:
    """Take a place in a job's story, after the event of that number."""
    follower = Follower(database, clock, job_id, principal, after)
    loop = asyncio.get_running_loop()

    def ring() -> None:
        loop.call_soon_threadsafe(follower.ring)

    with database.notifier.waiting(story_of(job_id), ring):
        yield follower
