"""Routes that tell a job's story while it happens: events, their stream, and logs."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import StreamingResponse

from advisor.api.access import Limit, Reader
from advisor.api.context import Context, Here
from advisor.api.edge.limits import Streams
from advisor.api.strict_json import make_router
from advisor.errors import JobNotFound, Unavailable
from advisor.protocol.views import EventPage, JobEvent, LogPage, read_last_event
from advisor.services import jobs
from advisor.services.following import follow
from advisor.services.tokens import Principal

router = make_router(prefix="/jobs", tags=["events and logs"])
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Return what has a larger number.")]
_PING_S = 15.0
"""Proxies end connections that are silent for longer."""
EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "data": {"type": "string"},
        "event": {"type": "string"},
        "id": {"type": "string"},
        "retry": {"type": "integer", "minimum": 0},
    },
}
"""What a server-sent event holds."""


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
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"itemSchema": EVENT_SCHEMA}}}},
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
) -> StreamingResponse:
    """Send a job's events as they happen, and an event `end` after the last one of a job that has ended.

    The stream ends when the token does, and after a while in any case: connect again with the last event's number.
    """
    after = max(after, read_last_event(last_event_id))
    return StreamingResponse(
        _tell(request, context, job_id, principal, after),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _tell(
    request: Request, context: Context, job_id: str, principal: Principal, after: int
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    until = loop.time() + context.settings.stream_s
    ping_s = loop.time() + _PING_S
    with follow(context.database, context.clock, job_id, principal, after) as follower:
        while not context.stopping.is_set() and not await request.is_disconnected() and loop.time() < until:
            try:
                told = await follower.take()
            except (Unavailable, JobNotFound):
                # The browser connects again and names the last event it has.
                return
            if told is None:
                return
            if told:
                yield b"".join(map(write_event, told))
            elif follower.is_over:
                data = json.dumps({"next_after": follower.after})
                yield format_sse_event(data_str=data, event="end")
                return
            elif loop.time() > ping_s:
                yield KEEPALIVE_COMMENT
            else:
                # Without a call: whether the server stops, the token still counts, the reader is still connected.
                await follower.wait(min(context.settings.tick_s, until - loop.time()))
                continue
            ping_s = loop.time() + _PING_S


def write_event(event: JobEvent) -> bytes:
    """Return an event as streams send it."""
    return format_sse_event(data_str=event.model_dump_json(), event=event.kind.value, id=str(event.seq))


@router.get("/{job_id}/logs", summary="What a job's training processes wrote")
def read_log(job_id: str, _: Reader, context: Here, after: After = 0, limit: Limit = 500) -> LogPage:
    """Return log chunks in order. The text comes from the script: show it as text, never as markup."""
    with context.database.read() as work:
        chunks = jobs.read_log(work, job_id, after, limit)
    return LogPage(items=tuple(chunks), next_after=chunks[-1].seq if chunks else after)
