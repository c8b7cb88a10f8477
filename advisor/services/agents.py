"""Agents: introducing themselves, asking for work, and the list of them."""

import hmac
import math
from datetime import datetime, timedelta

from advisor.errors import (
    AgentIsBusy,
    AgentNameTaken,
    AgentNotFound,
    AgentTurnedOut,
    LostRace,
    ProtocolMismatch,
    Unauthenticated,
)
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.messages import (
    PROTOCOL_MAJOR,
    AgentRegistered,
    Assignment,
    MemberState,
    RegisterAgent,
)
from advisor.protocol.measured.trials import Outcome, Session, SessionState
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.views import AgentPage, AgentState, AgentView, NewToken, Role
from advisor.services.ending import end_session, settle_if_gone
from advisor.services.jobs import get_job
from advisor.services.pages import cut_page, read_place
from advisor.services.timers import Timers
from advisor.services.tokens import USED_UP, Principal, create_token, hash_secret
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.accounts import Agent
from advisor.storage.repositories.members import Member

_OVERTIME_S = 10.0
"""What a session gets beyond its job's budget to report its last race and to leave."""


def register_agent(
    work: UnitOfWork,
    request: RegisterAgent,
    principal: Principal,
    now: datetime,
    timers: Timers,
    poll_s: float,
    beat_s: float,
) -> AgentRegistered:
    """Let an agent in under its name, with a token of its own; its earlier token ends.

    A name that is known belongs to the agent that has its secret, for as long as that agent is heard of or holds a
    session. It comes in whatever has become of the token that it first registered with: it needs no
    other when it starts again. Anybody else needs a token that still counts.

    An agent that registers has just started, so that what it held before is gone: that session ends. A place that it
    never took up still waits for it, if its node is what the place was given to.

    The name of an agent that was removed is free: nothing but the name is kept of who had it.

    Raises ProtocolMismatch, AgentTurnedOut, AgentNameTaken, Unauthenticated for a spent token, and LostRace when the
    agent is removed at the same moment.
    """
    if request.protocol_major != PROTOCOL_MAJOR:
        raise ProtocolMismatch(
            f"The agent speaks version {request.protocol_major} of the protocol, the server {PROTOCOL_MAJOR}."
        )
    known = work.agents.find(request.name)
    if known is not None and known.revoked_at is not None:
        raise AgentTurnedOut(f"The token of agent {known.name} was revoked.")
    proven = known is not None and _proves(request, principal, known)
    if not proven:
        if known is not None and known.secret_sha256 and not is_silent(known, now, timers):
            raise AgentNameTaken(f"An agent named {known.name} is at work on {known.node.hostname}.")
        if principal.spent or not work.tokens.use_up(principal.token_id, now):
            raise Unauthenticated(
                principal.spent or USED_UP,
                hint="An administrator makes another one: `advisor token create --role agent`.",
            )
    secret = hash_secret(request.secret)
    ends_at = None if request.ends_in_s is None else now + timedelta(seconds=request.ends_in_s)
    if known is None:
        agent_id = work.new_id()
        work.agents.add(agent_id, request.name, request.node, now, secret, ends_at)
    else:
        agent_id = known.id
        member = work.members.live_of(agent_id)
        if member is not None and not _still_waits(work, member, known.node, request.node):
            _abandon(work, member, f"Agent {request.name} started again.", now, heard_at=known.last_seen_at)
        was_removed = known.removed_at is not None
        if not work.agents.introduce_again(
            agent_id, request.node, now, secret, ends_at, was_removed=was_removed
        ):
            raise LostRace(f"Agent {known.name} was changed while it registered.")
    work.tokens.revoke_of_agent(agent_id, now)
    work.reach(FaultPoint.AGENT_REGISTERED)
    work.call_scheduler()
    token = create_token(work, NewToken(role=Role.AGENT, label=request.name), now, agent_id)
    return AgentRegistered(
        agent_id=agent_id,
        token=token.token,
        poll_s=poll_s,
        beat_s=beat_s,
        lease_s=timers.lease_s,
        fence_s=timers.pace(0).fence_s,
    )


def readmit_agent(work: UnitOfWork, agent_id: str) -> None:
    """Let an agent that was turned out, or that lost its secret, register again. Raises AgentNotFound."""
    if not work.agents.readmit(agent_id):
        raise _unknown(agent_id)


def drain_agent(work: UnitOfWork, agent_id: str, because: str) -> None:
    """Give an agent no further session until it is resumed. Raises AgentNotFound."""
    if not work.agents.drain(agent_id, because):
        raise _unknown(agent_id)


def resume_agent(work: UnitOfWork, agent_id: str) -> None:
    """Give an agent sessions again that was drained, or set aside for its measurements. Raises AgentNotFound."""
    if not work.agents.resume(agent_id):
        raise _unknown(agent_id)
    work.call_scheduler()


def remove_agent(work: UnitOfWork, agent_id: str, now: datetime) -> None:
    """Take an agent out of every list for good, and make its tokens useless.

    What was measured with it stays, with its name. The name is free: an agent registers under it with a token that
    lets agents in. Raises AgentNotFound, and AgentIsBusy while it holds a session.
    """
    if not work.agents.hold(agent_id):
        raise AgentNotFound(f"There is no agent {agent_id}.")
    # Looked up after the agent is held: the scheduler gives it no session in between.
    member = work.members.live_of(agent_id)
    if member is not None:
        raise AgentIsBusy(f"Agent {member.agent} holds session {member.session_id}.")
    work.agents.remove(agent_id, now)
    work.tokens.revoke_of_agent(agent_id, now)


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
    if member is None or member.state is not MemberState.PREPARING:
        return False
    session = work.sessions.get(member.session_id)
    return session is not None and session.state is SessionState.ENDING


def _limit_s(job: Job, session: Session) -> float:
    """How long the session may last: as long as its job's budget grants it, and as its job allows any."""
    left_s = math.inf if session.limit_s is None else session.limit_s + _OVERTIME_S
    return min(job.spec.session_timeout_s, left_s)


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
        session_timeout_s=_limit_s(job, session),
        signed=job.spec.signed,
    )


def view_agents(work: UnitOfWork, now: datetime, timers: Timers) -> tuple[AgentView, ...]:
    """Return every agent that ever registered and was not removed, by name."""
    return tuple(_view(agent, now, timers) for agent in work.agents.all())


def list_agents(
    work: UnitOfWork,
    now: datetime,
    timers: Timers,
    limit: int,
    cursor: str | None,
    name: str | None = None,
) -> AgentPage:
    """Return a page of agents, or the one of that name. Raises InvalidRequest for a cursor that no page gave."""
    found, next_cursor = cut_page(work.agents.page(limit, read_place(cursor), name))
    return AgentPage(items=tuple(_view(agent, now, timers) for agent in found), next_cursor=next_cursor)


def is_silent(agent: Agent, now: datetime, timers: Timers, served_since: datetime | None = None) -> bool:
    """Whether an agent has not been heard of for longer than an idle one ever goes without asking.

    One that holds a session never is: it beats as seldom as a crowd makes it, and its lease says whether it lives. An
    idle one is where this server, which serves since `served_since`, never heard it: it may have stopped with the
    server before, and every agent that lives asks again within moments.
    """
    if agent.session_id is not None:
        return False
    if served_since is not None and agent.last_seen_at < served_since:
        return True
    # An agent heard of in the future: the clock was set back since, and one that lives has asked again by then.
    return abs(now - agent.last_seen_at) > timedelta(seconds=timers.silent_s)


def _view(agent: Agent, now: datetime, timers: Timers) -> AgentView:
    silent = is_silent(agent, now, timers)
    busy = AgentState.BUSY if agent.session_id else AgentState.IDLE
    return AgentView(
        id=agent.id,
        name=agent.name,
        node=agent.node,
        state=AgentState.REVOKED if agent.revoked_at else AgentState.SILENT if silent else busy,
        session_id=agent.session_id,
        job_id=agent.job_id,
        last_seen_at=agent.last_seen_at,
        last_seen_s=max(0.0, (now - agent.last_seen_at).total_seconds()),
        flag=agent.flag,
        drained_because=agent.drained_because,
        ends_at=agent.ends_at,
        ends_in_s=None if agent.ends_at is None else max(0.0, (agent.ends_at - now).total_seconds()),
    )


def _unknown(agent_id: str) -> AgentNotFound:
    return AgentNotFound(f"There is no agent {agent_id}.")


def _proves(request: RegisterAgent, principal: Principal, known: Agent) -> bool:
    """Whether who registers is the agent that is known by the name."""
    if principal.agent_id is not None:
        return principal.agent_id == known.id and not principal.spent
    # The secret is compared as its hash is: what that takes tells nothing about it.
    return hmac.compare_digest(known.secret_sha256 or "", hash_secret(request.secret))


def _still_waits(work: UnitOfWork, member: Member, before: Node, now: Node) -> bool:
    """Whether nothing was started yet in an agent's place, and the agent has come back on the same node.

    A gang may have been formed with the agent of an earlier command, which stopped without a word a moment ago.
    """
    session = work.sessions.get(member.session_id)
    if member.state is not MemberState.PREPARING or session is None:
        return False
    return session.state is SessionState.ASSEMBLING and before == now


def _abandon(
    work: UnitOfWork,
    member: Member,
    reason: str,
    now: datetime,
    outcome: Outcome = Outcome.LOST,
    heard_at: datetime | None = None,
) -> None:
    session = work.sessions.get(member.session_id)
    if session is None or work.jobs.lock(session.job_id) is None:
        return
    work.members.leave(session.id, member.agent_id, outcome, reason, heard_at=heard_at)
    end_session(work, session, reason, now, outcome=None)
    settle_if_gone(work, session.id, now)
