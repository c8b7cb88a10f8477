"""Routes of sessions: what the agents of a gang say to the server. What is said twice counts once."""

from functools import partial

from anyio import to_thread
from fastapi import Response

from advisor.api.access import AgentPrincipal, find_agent_id
from advisor.api.context import Context, Here
from advisor.api.fast_path import Errand, Frequent, Headers
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
from advisor.storage import UnitOfWork

_KEPT_S = 5.0
"""An agent's client uses no connection again that lay idle for longer (httpx's own limit)."""

router = make_router(prefix="/sessions", tags=["sessions"])


def take_beat(context: Context, agent_id: str, message: Beat, session_id: str) -> Errand:
    """Renew an agent's lease, keep its telemetry and log, and tell where the session stands."""
    now, pace = context.clock(), context.lobby.pace

    def conclude(reply: BeatReply) -> tuple[BeatReply, Headers]:
        context.lobby.hear(agent_id, now)
        # Thousands of idle connections would be held for nothing, and one that the server gives up just when the next
        # beat is on its way loses that beat.
        ends = reply.state is SessionState.RUNNING and pace.beat_s > _KEPT_S
        return reply, {"connection": "close"} if ends else {}

    return Errand(
        lambda work: sessions.renew_session(work, session_id, agent_id, message, now, pace),
        conclude,
        # Samples of a race that has just ended are laid beside the job's other blocks.
        is_short=not message.telemetry.samples,
    )


@router.post("/{session_id}/beat", summary="Renew a lease")
def beat(
    session_id: str, message: Beat, principal: AgentPrincipal, context: Here, response: Response
) -> BeatReply:
    """Renew an agent's lease, keep its telemetry and log, and tell where the session stands."""
    errand = take_beat(context, find_agent_id(principal), message, session_id)
    reply: BeatReply = errand.run(context, response)
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
        context.stock,
        session_id,
        find_agent_id(principal),
        request.generation,
        context.clock(),
    )
    return await to_thread.run_sync(ask, limiter=context.waiting_room)


def take_report(context: Context, agent_id: str, report: RaceReport, session_id: str, race_id: str) -> Errand:
    """Accept a race's results, exactly once; raises ResultQuarantined for a report that does not count."""
    now = context.clock()

    def write(work: UnitOfWork) -> races.Accepted | races.Quarantined:
        return races.report_race(work, context.tuning, session_id, race_id, agent_id, report, now)

    def conclude(answer: races.Accepted | races.Quarantined) -> tuple[RaceAccepted, Headers]:
        context.metrics.note_report(is_accepted=isinstance(answer, races.Accepted))
        # Only now, after the commit: the quarantine has to stay.
        if isinstance(answer, races.Quarantined):
            error = ResultQuarantined(answer.sentence)
            error.code = "result_differs" if answer.differs else error.code
            raise error
        if answer.job_id is not None and not context.database.is_crowded:
            # The next question comes at once: its answer is being looked for by then.
            context.stock.think_ahead(answer.job_id, session_id)
        return answer.reply, {}

    return Errand(write, conclude)


@router.post("/{session_id}/races/{race_id}", summary="Report a race")
def report_race(
    session_id: str,
    race_id: str,
    report: RaceReport,
    principal: AgentPrincipal,
    context: Here,
    response: Response,
) -> RaceAccepted:
    """Accept a race's results, exactly once; 409 for a report that does not count and was put into quarantine."""
    errand = take_report(context, find_agent_id(principal), report, session_id, race_id)
    reply: RaceAccepted = errand.run(context, response)
    return reply


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


FREQUENT = (
    Frequent("/sessions/{session_id}/beat", Beat, take_beat),
    Frequent("/sessions/{session_id}/races/{race_id}", RaceReport, take_report),
)
"""What a fleet says most of the time."""
