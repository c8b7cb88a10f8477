"""Routes of sessions: what the agents of a gang say to the server. What is said twice counts once."""

from functools import partial

from anyio import to_thread
from fastapi import Response
from starlette.concurrency import run_in_threadpool

from advisor.api.access import AgentPrincipal, find_agent_id
from advisor.api.context import Context, Here
from advisor.api.strict_json import make_router
from advisor.errors import ResultQuarantined
from advisor.protocol.measured.messages import (
    Beat,
    BeatReply,
    HelloReport,
    NextReply,
    NextRequest,
    RaceReport,
    SessionEnd,
    Trouble,
)
from advisor.protocol.measured.trials import SessionState
from advisor.protocol.views import RaceAccepted
from advisor.services.measuring import races, sessions

_KEPT_S = 5.0
"""An agent's client uses no connection again that lay idle for longer (httpx's own limit)."""

router = make_router(prefix="/sessions", tags=["sessions"])


@router.post("/{session_id}/beat", summary="Renew a lease")
async def beat(
    session_id: str, message: Beat, principal: AgentPrincipal, context: Here, response: Response
) -> BeatReply:
    """Renew an agent's lease, keep its telemetry and log, and tell where the session stands."""
    agent_id, pace = find_agent_id(principal), context.lobby.pace
    context.lobby.hear(agent_id, context.clock())
    reply = context.leases.renew(session_id, agent_id, message, pace)
    if reply is None:
        reply = await run_in_threadpool(_keep_beat, context, session_id, agent_id, message)
    # Thousands of idle connections would be held for nothing, and one that the server gives up just when the next
    # beat is on its way loses that beat.
    if reply.state is SessionState.RUNNING and pace.beat_s > _KEPT_S:
        response.headers["connection"] = "close"
    return reply


def _keep_beat(context: Context, session_id: str, agent_id: str, message: Beat) -> BeatReply:
    stamp, pace = context.leases.stamp, context.lobby.pace
    with context.database.begin() as work:
        reply = sessions.renew_session(work, session_id, agent_id, message, context.clock(), pace)
    context.leases.remember(session_id, agent_id, message, reply, stamp)
    return reply


@router.post("/{session_id}/hello", status_code=204, summary="What the runtime saw of the script")
def hello(session_id: str, report: HelloReport, principal: AgentPrincipal, context: Here) -> None:
    """Keep the facts about the script, its baseline, and the knobs that cannot be served."""
    with context.database.begin() as work:
        sessions.hear_hello(work, session_id, find_agent_id(principal), report, context.clock())


@router.post("/{session_id}/next", summary="What is to be measured now?")
async def next_race(
    session_id: str, request: NextRequest, principal: AgentPrincipal, context: Here
) -> NextReply:
    """Return the race to run, or why the session is over. Repeating it gives the same race."""
    ask = partial(
        races.next_race,
        context.database,
        context.planner_queue,
        session_id,
        find_agent_id(principal),
        request.generation,
        context.clock(),
    )
    return await to_thread.run_sync(ask, limiter=context.waiting_room)


@router.post("/{session_id}/races/{race_id}", summary="Report a race")
async def report_race(
    session_id: str, race_id: str, report: RaceReport, principal: AgentPrincipal, context: Here
) -> RaceAccepted:
    """Accept a race's results, exactly once; 409 for a report that does not count and was put into quarantine."""
    agent_id, now = find_agent_id(principal), context.clock()
    keep = partial(
        races.report_race, context.database, context.tuning, session_id, race_id, agent_id, report, now
    )
    answer = await to_thread.run_sync(keep, limiter=context.writers)
    context.metrics.note_report(is_accepted=isinstance(answer, races.Accepted))
    # Only now, after the commit: the quarantine has to stay.
    if isinstance(answer, races.Quarantined):
        error = ResultQuarantined(answer.sentence)
        error.code = "result_differs" if answer.differs else error.code
        raise error
    if answer.job_id is not None:
        # The next question comes at once: its answer is being looked for by then.
        context.planner_queue.think_ahead(answer.job_id)
    return answer.reply


@router.post("/{session_id}/trouble", status_code=204, summary="Something no strategy can change")
def trouble(session_id: str, message: Trouble, principal: AgentPrincipal, context: Here) -> None:
    """End the session because of the script or its surroundings."""
    with context.database.begin() as work:
        sessions.hear_trouble(work, session_id, find_agent_id(principal), message, context.clock())


@router.post("/{session_id}/end", status_code=204, summary="Every training process of a node is gone")
def end(session_id: str, message: SessionEnd, principal: AgentPrincipal, context: Here) -> None:
    """Note how a node's part of the session ended; with the last node the session is over."""
    with context.database.begin() as work:
        sessions.leave_session(work, session_id, find_agent_id(principal), message, context.clock())
