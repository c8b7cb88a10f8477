"""Agents: introducing themselves, asking for work, and the list of them."""

from datetime import datetime, timedelta

from advisor.errors import AgentNotFound, ProtocolMismatch
from advisor.protocol.cluster import Node
from advisor.protocol.messages import (
    PROTOCOL_MAJOR,
    AgentRegistered,
    Assignment,
    MemberState,
    RegisterAgent,
)
from advisor.protocol.trials import Outcome, SessionState
from advisor.protocol.views import AgentPage, AgentState, AgentView, Role
from advisor.services.ending import end_session, settle_if_gone
from advisor.services.jobs import get_job
from advisor.services.tokens import create_token
from advisor.services.tuning import Timers
from advisor.storage import UnitOfWork
from advisor.storage.accounts import Agent
from advisor.storage.members import Member


def register_agent(
    work: UnitOfWork, request: RegisterAgent, now: datetime, timers: Timers, poll_s: float, beat_s: float
) -> AgentRegistered:
    """Let an agent in under its name, with a token of its own; its earlier token ends.

    An agent that registers has just started, so that what it held before is gone: that session ends. A place that it
    never took up still waits for it, if its node is what the place was given to. Raises ProtocolMismatch.
    """
    if request.protocol_major != PROTOCOL_MAJOR:
        raise ProtocolMismatch(
            f"The agent speaks version {request.protocol_major} of the protocol, the server {PROTOCOL_MAJOR}."
        )
    known = work.agents.find(request.name)
    member = work.members.live_of(known) if known else None
    if member is not None and not _still_waits(work, member, request.node):
        _abandon(work, member, f"Agent {request.name} started again.", now)
    if known is None:
        agent_id = work.new_id()
        work.agents.add(agent_id, request.name, request.node, now)
    else:
        agent_id = known
        work.agents.introduce_again(agent_id, request.node, now)
    work.tokens.revoke_of_agent(agent_id, now)
    token = create_token(work, Role.AGENT, request.name, now, agent_id)
    return AgentRegistered(
        agent_id=agent_id,
        token=token.token,
        poll_s=poll_s,
        beat_s=beat_s,
        lease_s=timers.lease_s,
        fence_s=timers.lease_s * 0.6,
    )


def leave_ending(work: UnitOfWork, agent_id: str, now: datetime) -> None:
    """Free an agent that asks for work while its session ends and that never took it up: it has nothing to end."""
    member = work.members.live_of(agent_id)
    if member is None or member.state is not MemberState.PREPARING:
        return
    session = work.sessions.get(member.session_id)
    if session is not None and session.state is SessionState.ENDING:
        _abandon(work, member, session.reason, now, outcome=Outcome.CANCELLED)


def holds_ending(work: UnitOfWork, agent_id: str) -> bool:
    """Whether an agent that asks for work has to be freed first. Raises AgentNotFound."""
    if not work.agents.exists(agent_id):
        raise AgentNotFound("The agent is not registered.")
    member = work.members.live_of(agent_id)
    session = work.sessions.get(member.session_id) if member else None
    return session is not None and session.state is SessionState.ENDING


def find_assignment(work: UnitOfWork, agent_id: str) -> Assignment | None:
    """Return the place that waits for an agent; asking again gives the same until the agent takes it up."""
    member = work.members.live_of(agent_id)
    if member is None or member.state is not MemberState.PREPARING:
        return None
    session = work.sessions.get(member.session_id)
    if session is None or session.state is not SessionState.ASSEMBLING:
        return None
    job = get_job(work, session.job_id)
    return Assignment(
        session_id=session.id,
        generation=session.generation,
        job_id=job.id,
        node_rank=member.node_rank,
        nnodes=job.spec.nodes,
        workload=job.spec.workload,
        cold=session.cold,
        hang_timeout_s=job.spec.patience_s,
        session_timeout_s=job.spec.session_timeout_s,
    )


def list_agents(work: UnitOfWork, now: datetime, timers: Timers = Timers()) -> AgentPage:
    """Return every agent that ever registered, by name."""
    return AgentPage(items=tuple(_view(agent, now, timers) for agent in work.agents.all()))


def is_silent(agent: Agent, now: datetime, timers: Timers, served_since: datetime | None = None) -> bool:
    """Whether an agent has not been heard of for longer than an idle one ever goes without asking.

    Nor does one count that this server, which serves since `served_since`, never heard: it may have stopped with the
    server before, and every agent that lives asks again within moments.
    """
    if served_since is not None and agent.last_seen_at < served_since:
        return True
    # Nobody was heard of in the future: the clock was set back since, and who lives has asked again by then.
    return abs(now - agent.last_seen_at) > timedelta(seconds=timers.silent_s)


def _view(agent: Agent, now: datetime, timers: Timers) -> AgentView:
    silent = is_silent(agent, now, timers)
    busy = AgentState.BUSY if agent.session_id else AgentState.IDLE
    return AgentView(
        id=agent.id,
        name=agent.name,
        node=agent.node,
        state=AgentState.SILENT if silent else busy,
        session_id=agent.session_id,
        job_id=agent.job_id,
        last_seen_at=agent.last_seen_at,
        last_seen_s=max(0.0, (now - agent.last_seen_at).total_seconds()),
        flag=agent.flag,
    )


def _still_waits(work: UnitOfWork, member: Member, node: Node) -> bool:
    """Whether nothing was started yet in an agent's place, and the agent has come back on the same node.

    A gang may have been formed with the agent of an earlier command, which stopped without a word a moment ago.
    """
    session = work.sessions.get(member.session_id)
    if member.state is not MemberState.PREPARING or session is None:
        return False
    before = next((agent.node for agent in work.agents.all() if agent.id == member.agent_id), None)
    return session.state is SessionState.ASSEMBLING and before == node


def _abandon(
    work: UnitOfWork,
    member: Member,
    reason: str,
    now: datetime,
    outcome: Outcome = Outcome.LOST,
) -> None:
    session = work.sessions.get(member.session_id)
    if session is None or work.jobs.lock(session.job_id) is None:
        return
    work.members.leave(session.id, member.agent_id, outcome, reason)
    end_session(work, session, reason, now, outcome=None)
    settle_if_gone(work, session.id, now)
