"""Routes of agents: registering, asking for work, and the list of them."""

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import Query, Response
from starlette.concurrency import run_in_threadpool

from advisor.api.access import Admin, AgentPrincipal, Cursor, Limit, Reader, Registrant, find_agent_id
from advisor.api.context import Context, Here
from advisor.api.strict_json import make_router
from advisor.errors import Forbidden
from advisor.protocol.measured.messages import AgentRegistered, Assignment, PollReply, RegisterAgent
from advisor.protocol.training.workload import WITH_SECRETS
from advisor.protocol.views import AgentPage, Drain
from advisor.services import agents

router = make_router(prefix="/agents", tags=["agents"])


@router.get("", summary="List agents")
def list_agents(
    _: Reader,
    context: Here,
    limit: Limit = 500,
    cursor: Cursor = None,
    name: Annotated[str | None, Query(max_length=100, description="Only the agent of this name.")] = None,
) -> AgentPage:
    """Return a page of the agents that ever registered and were not removed, by name, with what they are doing."""
    with context.database.read() as work:
        return agents.list_agents(work, context.clock(), context.timers, limit, cursor, name)


@router.post("", summary="Register an agent")
def register_agent(request: RegisterAgent, principal: Registrant, context: Here) -> AgentRegistered:
    """Let an agent in. The answer holds a token of its own, to be used for everything else.

    409 `agent_name_taken` while another agent of that name is at work, 403 `agent_turned_out` after its token was
    revoked.
    """
    if principal.agent is not None and principal.agent != request.name:
        raise Forbidden(f"This token is the own one of agent {principal.agent}; it registers no other.")
    settings = context.settings
    with context.database.begin() as work:
        return agents.register_agent(
            work, request, principal, context.clock(), context.timers, settings.poll_s, settings.beat_s
        )


@router.post("/{agent_id}:readmit", status_code=204, summary="Let an agent in again")
def readmit_agent(agent_id: str, _: Admin, context: Here) -> None:
    """Let an agent register again whose token was revoked, or that lost the secret in its work directory."""
    with context.database.begin() as work:
        agents.readmit_agent(work, agent_id)


@router.post("/{agent_id}:drain", status_code=204, summary="Give an agent no further work")
def drain_agent(agent_id: str, wanted: Drain, _: Admin, context: Here) -> None:
    """Let an agent finish the session that it holds and take no further one, until `:resume`."""
    with context.database.begin() as work:
        agents.drain_agent(work, agent_id, wanted.reason)


@router.post("/{agent_id}:resume", status_code=204, summary="Give an agent work again")
def resume_agent(agent_id: str, _: Admin, context: Here) -> None:
    """Let an agent take sessions again that was drained, or set aside for what it measured."""
    with context.database.begin() as work:
        agents.resume_agent(work, agent_id)


@router.delete("/{agent_id}", status_code=204, summary="Remove an agent")
def remove_agent(agent_id: str, _: Admin, context: Here) -> None:
    """Take an agent that is gone for good out of every list; its own token counts no more, and its name is free.

    What was measured with it stays. 409 `agent_is_busy` while it holds a session: drain it, and wait for the end.
    """
    with context.database.begin() as work:
        agents.remove_agent(work, agent_id, context.clock())


@router.post("/{agent_id}/poll", summary="Ask for work")
async def poll(agent_id: str, principal: AgentPrincipal, context: Here) -> PollReply:
    """Return an assignment as soon as there is one; after a while without one, say so."""
    if find_agent_id(principal) != agent_id:
        raise Forbidden("An agent asks for its own work only.")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.settings.poll_s
    called = asyncio.Event()

    def call() -> None:
        loop.call_soon_threadsafe(called.set)

    # Waiting begins before the first look: no place that is given in between is overlooked.
    with context.lobby.wait(agent_id, call, context.clock()):
        while True:
            called.clear()
            assignment = await run_in_threadpool(_look, context, agent_id)
            if assignment is None and not context.stopping.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(called.wait(), deadline - loop.time())
                    continue
            reply = PollReply(assignment=assignment)
            # The only answer that holds a job's secrets: this agent is to run it.
            body = reply.model_dump_json(context=WITH_SECRETS)
            return Response(body, media_type="application/json")  # type: ignore[return-value]


def _look(context: Context, agent_id: str) -> Assignment | None:
    with context.database.read() as work:
        if not agents.holds_ending(work, agent_id):
            return agents.find_assignment(work, agent_id)
    with context.database.begin() as work:
        agents.leave_ending(work, agent_id, context.clock())
    return None
