"""The live stream of a job's page: tells the browser that something changed, so that it fetches the page again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.concurrency import run_in_threadpool

from advisor.dashboard.source import Source
from advisor.errors import AdvisorError
from advisor.services.jobs import get_job
from advisor.storage import UnitOfWork

LOOK_S = 1.0
PING_EVERY_LOOKS = 15
_MOST_JOBS = 1000
"""Jobs that are remembered; then it begins anew."""
LONGEST_LOOKS = 600
"""A stream ends after ten minutes, and the browser opens the next: no stream outlives its visit for long."""


class Looks:
    """What the last look at each job told: of all who follow a job, one looks and the others take over what it saw."""

    def __init__(self, source: Source, kept_s: float = LOOK_S) -> None:
        """A look counts for `kept_s`."""
        self._source, self._kept_s = source, kept_s
        self._seen: dict[str, tuple[float, int, bool]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def look(self, job_id: str) -> tuple[int, bool]:
        """Return the number of a job's newest event, and whether the job has ended. Raises AdvisorError."""
        if len(self._turns) > _MOST_JOBS:
            self._turns, self._seen = {}, {}
        async with self._turns.setdefault(job_id, asyncio.Lock()):
            now_s = time.monotonic()
            at_s, newest, is_final = self._seen.get(job_id, (-1e9, 0, False))
            if now_s - at_s >= self._kept_s:
                newest, is_final = await run_in_threadpool(self._source.read, _look, job_id)
                self._seen[job_id] = (now_s, newest, is_final)
            return newest, is_final


def _look(work: UnitOfWork, job_id: str) -> tuple[int, bool]:
    # The state first: an event that comes after it is found by the next look.
    is_final = get_job(work, job_id).state.is_final
    return work.events.newest(job_id) or 0, is_final


def write_event(kind: str, number: int) -> str:
    """Return one server-sent event; the number lets a browser resume."""
    return f"id: {number}\nevent: {kind}\ndata: {number}\n\n"


async def stream_changes(
    looks: Looks,
    job_id: str,
    after: int,
    is_welcome: Callable[[], Awaitable[bool]],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[str]:
    """Yield `changed` after every new event of the job, and `ended` once it is final.

    Looks once a second: every transition of job, session, trial and block writes an event. `is_welcome` says
    whether the browser is still there and signed in.
    """
    yield "retry: 3000\n\n"
    try:
        for look in range(LONGEST_LOOKS):
            if not await is_welcome():
                return
            newest, is_final = await looks.look(job_id)
            if newest > after:
                after = newest
                yield write_event("changed", after)
            elif is_final:
                yield write_event("ended", after)
                return
            if look % PING_EVERY_LOOKS == PING_EVERY_LOOKS - 1:
                yield ": still here\n\n"
            await pause(LOOK_S)
    except AdvisorError:
        # The job is gone or the database is away: the browser tries again and gets a page that says so.
        return
