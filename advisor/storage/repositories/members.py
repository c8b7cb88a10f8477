"""Members: the agents of a gang, each with a lease of its own."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, exists, func, insert, select, update

from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Outcome, SessionState
from advisor.storage.columns import AnyRow
from advisor.storage.tables import LIVE_SESSIONS, AgentRow, MemberRow, SessionRow

_ORDER = list(MemberState)


@dataclass(frozen=True)
class Member:
    """An agent's place in a gang."""

    session_id: str
    agent_id: str
    agent: str
    """The agent's name."""
    node_rank: int
    state: MemberState
    live: bool
    """Whether the agent still belongs to the gang."""
    news: int
    """Number of the latest news that were kept."""
    outcome: Outcome | None
    """How its part of the session ended, once it said so."""
    reason: str
    log_tail: str
    total_steps: int


class Seat(NamedTuple):
    """An agent's place in a gang, and what a report from there is judged by."""

    session_id: str
    node_rank: int
    job_id: str
    generation: int
    state: SessionState
    reason: str
    created_at: datetime
    """When the session was."""


class Lease(NamedTuple):
    """A live session, and a member of it whose lease may run."""

    session_id: str
    job_id: str
    state: str
    """The session's."""
    agent_id: str | None
    """None for a session without members."""
    member: str
    """The member's state."""

    @property
    def is_awaited(self) -> bool:
        """Whether the agent has not taken up its place yet, as far as the database knows."""
        return self.state == SessionState.ASSEMBLING and self.member == MemberState.PREPARING


class Members:
    """The members of one transaction."""

    def __init__(self, connection: Connection, left: set[str]) -> None:
        """`left` is given the sessions that members leave."""
        self._connection, self._left = connection, left

    def add(self, session_id: str, agent_id: str, node_rank: int) -> None:
        """Give an agent a place; a unique index refuses an agent that holds one already."""
        self._connection.execute(
            insert(MemberRow).values(
                session_id=session_id,
                agent_id=agent_id,
                node_rank=node_rank,
                state=MemberState.PREPARING,
                live=True,
            )
        )

    def of_session(self, session_id: str) -> list[Member]:
        """Return the gang in node-rank order."""
        query = _QUERY.where(MemberRow.session_id == session_id).order_by(MemberRow.node_rank)
        return [_member(row) for row in self._connection.execute(query)]

    def get(self, session_id: str, agent_id: str) -> Member | None:
        """Return an agent's place in a session."""
        row = self._connection.execute(_GET, {"session": session_id, "agent": agent_id}).one_or_none()
        return _member(row) if row else None

    def seat_of(self, session_id: str, agent_id: str) -> Seat | None:
        """Return the same, as far as a report asks, in one statement."""
        row = self._connection.execute(_SEAT, {"session": session_id, "agent": agent_id}).one_or_none()
        if row is None:
            return None
        state = SessionState(row.state)
        return Seat(session_id, row.node_rank, row.job_id, row.generation, state, row.reason, row.created_at)

    def live_of(self, agent_id: str) -> Member | None:
        """Return the place that an agent holds now."""
        row = self._connection.execute(_LIVE_OF, {"agent": agent_id}).one_or_none()
        return _member(row) if row else None

    def leases(self) -> list[Lease]:
        """Return the live sessions with the members that they have now."""
        return [Lease(*row) for row in self._connection.execute(_LEASES)]

    def count_live(self) -> int:
        """Return how many agents hold a place."""
        return self._connection.execute(_COUNT_LIVE).scalar_one()

    def awaited(self) -> set[str]:
        """Return the agents that a place waits for, which they have not taken up yet."""
        return set(self._connection.execute(_AWAITED).scalars())

    def renew(
        self,
        session_id: str,
        agent_id: str,
        generation: int,
        state: MemberState,
        news: int = 0,
    ) -> bool:
        """Keep what a beat says of a member. Refused for another generation, a final session, and one that has gone.

        A state never goes back, nor does the number of the news that are kept: a beat that was overtaken changes
        neither.
        """
        earlier = [value for value in _ORDER[:-1] if _ORDER.index(value) <= _ORDER.index(state)]
        beat = {
            "session": session_id,
            "agent": agent_id,
            "of_generation": generation,
            "earlier": earlier,
            "now_state": state,
            "of_news": news,
        }
        return self._connection.execute(_RENEW, beat).rowcount == 1

    def leave(
        self,
        session_id: str,
        agent_id: str,
        outcome: Outcome | None,
        reason: str,
        log_tail: str = "",
        total_steps: int = 0,
        *,
        heard_at: datetime | None,
    ) -> bool:
        """Note that every rank of a node is gone; its first report of how that came stands.

        `heard_at`: when the agent was last heard of from there; None where that is when it was last heard of at all.
        """
        self._left.add(session_id)
        query = (
            update(MemberRow)
            .where(
                MemberRow.session_id == session_id,
                MemberRow.agent_id == agent_id,
                MemberRow.live,
                MemberRow.outcome.is_(None),
            )
            .values(
                state=MemberState.GONE,
                outcome=outcome,
                reason=reason,
                log_tail=log_tail,
                total_steps=total_steps,
                heard_at=heard_at,
            )
        )
        return self._connection.execute(query).rowcount == 1

    def release(self, session_id: str) -> None:
        """Free all agents of a session."""
        self._left.add(session_id)
        query = update(MemberRow).where(MemberRow.session_id == session_id).values(live=False)
        self._connection.execute(query)


_QUERY = select(MemberRow, AgentRow.name.label("agent")).join(AgentRow, AgentRow.id == MemberRow.agent_id)
# Every beat runs these, or every second: putting a statement together takes several times as long as running it.
_MINE = (MemberRow.session_id == bindparam("session"), MemberRow.agent_id == bindparam("agent"))
_GET = _QUERY.where(*_MINE)
_SEAT = (
    select(
        MemberRow.node_rank,
        SessionRow.job_id,
        SessionRow.generation,
        SessionRow.state,
        SessionRow.reason,
        SessionRow.created_at,
    )
    .join(SessionRow, SessionRow.id == MemberRow.session_id)
    .where(*_MINE)
)
_COUNT_LIVE = select(func.count()).select_from(MemberRow).where(MemberRow.live)
_LEASES = (
    select(
        SessionRow.id,
        SessionRow.job_id,
        SessionRow.state,
        MemberRow.agent_id,
        func.coalesce(MemberRow.state, ""),
    )
    .outerjoin(MemberRow, (MemberRow.session_id == SessionRow.id) & MemberRow.live)
    .where(SessionRow.state.in_(LIVE_SESSIONS))
)
_AWAITED = (
    select(MemberRow.agent_id)
    .join(SessionRow, SessionRow.id == MemberRow.session_id)
    .where(
        MemberRow.live,
        MemberRow.state == MemberState.PREPARING,
        SessionRow.state == SessionState.ASSEMBLING,
    )
)
_LIVE_OF = _QUERY.where(MemberRow.agent_id == bindparam("agent"), MemberRow.live)
_RENEW = (
    update(MemberRow)
    .where(
        *_MINE,
        MemberRow.live,
        MemberRow.state != MemberState.GONE,
        exists().where(
            SessionRow.id == bindparam("session"),
            SessionRow.generation == bindparam("of_generation"),
            SessionRow.state.in_(LIVE_SESSIONS),
        ),
    )
    .values(
        news=case((MemberRow.news < bindparam("of_news"), bindparam("of_news")), else_=MemberRow.news),
        state=case(
            (MemberRow.state.in_(bindparam("earlier", expanding=True)), bindparam("now_state")),
            else_=MemberRow.state,
        ),
    )
)


def _member(row: AnyRow) -> Member:
    return Member(
        session_id=row.session_id,
        agent_id=row.agent_id,
        agent=row.agent,
        node_rank=row.node_rank,
        state=MemberState(row.state),
        live=row.live,
        news=row.news,
        outcome=Outcome(row.outcome) if row.outcome else None,
        reason=row.reason,
        log_tail=row.log_tail,
        total_steps=row.total_steps,
    )
