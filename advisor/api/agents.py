"""Routes of agents: registering, asking for work, and the list of them."""

import asyncio

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from advisor.api.access import AgentPrincipal, Reader, find_agent_id
from advisor.api.context import Context, Here
from advisor.errors import Forbidden
from advisor.protocol.messages import AgentRegistered, Assignment, PollReply, RegisterAgent
from advisor.protocol.views import AgentPage
from advisor.services import agents

_FIRST_LOOK_S = 0.02

router = APIRouter(prefix="/agents", tags=["agents"])


@router.get("", summary="List agents")
def list_agents(_: Reader, context: Here) -> AgentPage:
    """Return every agent that ever registered, with what it is doing."""
    with context.database.read() as work:
        return agents.list_agents(work, context.clock(), context.timers)


@router.post("", summary="Register an agent")
def register_agent(request: RegisterAgent, principal: AgentPrincipal, context: Here) -> AgentRegistered:
    """Let an agent in. The answer holds a token of its own, to be used for everything else."""
    if principal.agent is not None and principal.agent != request.name:
        raise Forbidden(f"This token is the own one of agent {principal.agent}; it registers no other.")
    settings = context.settings
    with context.database.begin() as work:
        registered = agents.register_agent(
            work, request, context.clock(), context.timers, settings.poll_s, settings.beat_s
        )
    context.wake.set()
    return registered


@router.post("/{agent_id}/poll", summary="Ask for work")
async def poll(agent_id: str, request: Request, principal: AgentPrincipal, context: Here) -> PollReply:
    """Return an assignment as soon as there is one; after a while without one, say so."""
    if find_agent_id(principal) != agent_id:
        raise Forbidden("An agent asks for its own work only.")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.settings.poll_s
    await run_in_threadpool(_see, context, agent_id)
    # Who has just come is often given a place at once: the first looks follow each other quickly.
    pause_s = min(_FIRST_LOOK_S, context.settings.look_s)
    while True:
        # Each look is a transaction of its own: nothing is held while waiting.
        assignment = await run_in_threadpool(_look, context, agent_id)
        over = loop.time() >= deadline or context.stopping.is_set()
        if assignment is not None or over or await request.is_disconnected():
            return PollReply(assignment=assignment)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, context.settings.look_s)


def _see(context: Context, agent_id: str) -> None:
    with context.database.begin() as work:
        agents.see_agent(work, agent_id, context.clock())
    context.wake.set()


def _look(context: Context, agent_id: str) -> Assignment | None:
    with context.database.read() as work:
        return agents.find_assignment(work, agent_id)
