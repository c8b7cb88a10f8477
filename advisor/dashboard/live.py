"""The live stream of a job's page: tells the browser that something changed, so that it fetches the page again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.concurrency import run_in_threadpool

from advisor.dashboard.source import Source
from advisor.errors import AdvisorError

LOOK_S = 1.0
PING_EVERY_LOOKS = 15
LONGEST_LOOKS = 600
"""A stream ends after ten minutes, and the browser opens the next: no stream outlives its visit for long."""


def write_event(kind: str, number: int) -> str:
    """Return one server-sent event; the number lets a browser resume."""
    return f"id: {number}\nevent: {kind}\ndata: {number}\n\n"


async def stream_changes(
    source: Source,
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
            final = (await run_in_threadpool(source.job, job_id)).state.is_final
            fresh = await run_in_threadpool(source.events, job_id, after, 500)
            if fresh:
                after = fresh[-1].seq
                yield write_event("changed", after)
            if final and not fresh:
                yield write_event("ended", after)
                return
            if look % PING_EVERY_LOOKS == PING_EVERY_LOOKS - 1:
                yield ": still here\n\n"
            await pause(LOOK_S)
    except AdvisorError:
        # The job is gone or the database is away: the browser tries again and gets a page that says so.
        return
