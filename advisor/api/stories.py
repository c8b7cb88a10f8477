"""Routes that tell a job's story while it happens: events, their stream, and logs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from advisor.api.access import Reader
from advisor.api.context import Context, Here
from advisor.api.edge.streams import Streams
from advisor.api.paging import Limit
from advisor.api.strict_json import make_router
from advisor.errors import JobNotFound, Unauthenticated, Unavailable
from advisor.protocol.views import EventPage, JobEvent, LogPage, read_last_event
from advisor.services import jobs
from advisor.services.tokens import Principal, still_counts
from advisor.storage.bell import story_of

router = make_router(prefix="/jobs", tags=["events and logs"])
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Return what has a larger number.")]
_BATCH = 100


async def hold_stream(request: Request, principal: Reader) -> AsyncIterator[None]:
    """Count a stream to its token, until its answer is over."""
    streams: Streams = request.app.state.streams
    with streams.hold(principal.token_id):
        yield


def get_job_id(job_id: str, _: Reader, context: Here) -> str:
    """Return the id of a job that exists: a stream that has begun cannot answer 404 any more."""
    with context.database.read() as work:
        return jobs.get_job(work, job_id).id


@router.get("/{job_id}/events", summary="What happened to a job")
def list_events(job_id: str, _: Reader, context: Here, after: After = 0, limit: Limit = 500) -> EventPage:
    """Return a job's events in order: every transition is one sentence."""
    with context.database.read() as work:
        events = jobs.list_events(work, job_id, after, limit)
    return EventPage(items=tuple(events), next_after=events[-1].seq if events else after)


@router.get(
    "/{job_id}/events/stream",
    summary="What happens to a job, live",
    response_class=EventSourceResponse,
    dependencies=[Depends(hold_stream)],
)
async def stream_events(
    request: Request,
    principal: Reader,
    context: Here,
    job_id: Annotated[str, Depends(get_job_id)],
    after: After = 0,
    last_event_id: Annotated[
        str | None, Header(description="Number of the last event received; browsers send it by themselves.")
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Send a job's events as they happen, and an event `end` after the last one of a job that has ended.

    The stream ends when the token does, and after a while in any case: connect again with the last event's number.
    """
    after = max(after, read_last_event(last_event_id))
    loop = asyncio.get_running_loop()
    until = loop.time() + context.settings.stream_s
    called, bell = asyncio.Event(), context.database.bell

    def call() -> None:
        loop.call_soon_threadsafe(called.set)

    with bell.waiting(story_of(job_id), call):
        while not context.stopping.is_set() and not await request.is_disconnected() and loop.time() < until:
            called.clear()
            try:
                events, ended = await run_in_threadpool(_look, context, principal, job_id, after)
            except (Unavailable, Unauthenticated, JobNotFound):
                # The browser connects again and names the last event it has.
                return
            for event in events:
                after = event.seq
                yield ServerSentEvent(data=event, event=event.kind.value, id=str(event.seq))
            if ended and not events:
                yield ServerSentEvent(data={"next_after": after}, event="end")
                return
            if not events:
                # Without a call: whether the server stops, the token still counts, somebody is still there.
                rest_s = context.settings.tick_s if bell.is_heard else context.settings.look_s
                with suppress(TimeoutError):
                    await asyncio.wait_for(called.wait(), min(rest_s, until - loop.time()))


@router.get("/{job_id}/logs", summary="What a job's training processes wrote")
def read_log(job_id: str, _: Reader, context: Here, after: After = 0, limit: Limit = 500) -> LogPage:
    """Return log chunks in order. The text comes from the script: show it as text, never as markup."""
    with context.database.read() as work:
        chunks = jobs.read_log(work, job_id, after, limit)
    return LogPage(items=tuple(chunks), next_after=chunks[-1].seq if chunks else after)


def _look(context: Context, principal: Principal, job_id: str, after: int) -> tuple[list[JobEvent], bool]:
    with context.database.read() as work:
        if not still_counts(work, principal, context.clock()):
            raise Unauthenticated("The token has ended since the stream began.")
        # The state first: an event that comes after this look is found by the next one.
        ended = jobs.get_job(work, job_id).state.is_final
        return jobs.list_events(work, job_id, after, _BATCH), ended
