"""Members: the agents of a gang, each with a lease of its own."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, String, bindparam, case, cast, exists, func, insert, or_, select, update

from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Outcome, SessionState
from advisor.storage.columns import AnyRow, read_word
from advisor.storage.prepared import Prepared
from advisor.storage.states import LIVE_SESSIONS
from advisor.storage.tables import AgentRow, MemberRow, SessionRow

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
    renewals: int
    """Beats that renewed its lease."""
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


class Watched(NamedTuple):
    """What a lease is judged by: as long as any of it changes, the agent lives."""

    agent_id: str
    renewals: int
    state: str
    """The word of a MemberState, which another release may have written."""


class WatchedSession(NamedTuple):
    """A live session, and those of its members whose leases run."""

    id: str
    job_id: str
    state: SessionState
    members: list[Watched]


def read_watched(line: str) -> WatchedSession:
    """Return what a line of `Members.watched` says."""
    session_id, job_id, state, members = line.split("|")
    seen = (member.split(" ") for member in members.split(",") if member)
    leases = [Watched(agent_id, int(renewals), word) for agent_id, renewals, word in seen]
    return WatchedSession(session_id, job_id, SessionState(state), leases)


class Members:
    """The members of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
        row = _GET.one_or_none(self._connection, {"session": session_id, "agent": agent_id})
        return _member(row) if row else None

    def seat_of(self, session_id: str, agent_id: str) -> Seat | None:
        """Return the same, as far as a report asks, in one statement."""
        row = _SEAT.one_or_none(self._connection, {"session": session_id, "agent": agent_id})
        if row is None:
            return None
        state = read_word(SessionState, row.state)
        return Seat(session_id, row.node_rank, row.job_id, row.generation, state, row.reason, row.created_at)

    def live_of(self, agent_id: str) -> Member | None:
        """Return the place that an agent holds now."""
        row = self._connection.execute(_LIVE_OF, {"agent": agent_id}).one_or_none()
        return _member(row) if row else None

    def watched(self) -> list[str]:
        """Return a line for each live session with its members whose leases run; `read_watched` reads it.

        While the gang assembles, these are only the members that were heard of. The database puts all of it together:
        most lines are what they were a moment ago, and thousands of rows or objects at once hold up beats.
        """
        text: str | None = self._connection.execute(_WATCHED).scalar_one()
        return text.split("\n") if text else []

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
        now: datetime,
        news: int = 0,
    ) -> bool:
        """Renew a lease. Refused for another generation, a final session, and a member that has gone.

        A state never goes back, nor does the number of the news that are kept: a beat that was overtaken renews the
        lease and changes neither.
        """
        earlier = [value for value in _ORDER[:-1] if _ORDER.index(value) <= _ORDER.index(state)]
        beat = {
            "session": session_id,
            "agent": agent_id,
            "of_generation": generation,
            "earlier": earlier,
            "now_state": state,
            "heard_at": now,
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

        `heard_at`: when the agent said so; None where another agent did, so that it is unknown since when it is so.
        """
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
                heard_at=MemberRow.heard_at if heard_at is None else heard_at,
            )
        )
        return self._connection.execute(query).rowcount == 1

    def release(self, session_id: str) -> None:
        """Free all agents of a session."""
        query = update(MemberRow).where(MemberRow.session_id == session_id).values(live=False)
        self._connection.execute(query)


_QUERY = select(MemberRow, AgentRow.name.label("agent")).join(AgentRow, AgentRow.id == MemberRow.agent_id)
# Every beat runs these, or every second: putting a statement together takes several times as long as running it.
_MINE = (MemberRow.session_id == bindparam("session"), MemberRow.agent_id == bindparam("agent"))
_GET = Prepared(_QUERY.where(*_MINE))
_SEAT = Prepared(
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
        func.aggregate_strings(
            MemberRow.agent_id + " " + cast(MemberRow.renewals, String) + " " + MemberRow.state, ","
        )
    )
    .where(
        MemberRow.session_id == SessionRow.id,
        MemberRow.live,
        or_(
            MemberRow.renewals > 0,
            MemberRow.state != MemberState.PREPARING,
            SessionRow.state != SessionState.ASSEMBLING,
        ),
    )
    .correlate(SessionRow)
    .scalar_subquery()
)
_LINES = (
    select(
        (SessionRow.id + "|" + SessionRow.job_id + "|" + SessionRow.state + "|" + func.coalesce(_LEASES, ""))
        .label("line")
    )
    .where(SessionRow.state.in_(LIVE_SESSIONS))
    .subquery()
)  # fmt: skip
_WATCHED = select(func.aggregate_strings(_LINES.c.line, "\n"))
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
        renewals=MemberRow.renewals + 1,
        news=case((MemberRow.news < bindparam("of_news"), bindparam("of_news")), else_=MemberRow.news),
        heard_at=bindparam("heard_at", type_=MemberRow.heard_at.type),
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
        state=read_word(MemberState, row.state),
        live=row.live,
        renewals=row.renewals,
        news=row.news,
        outcome=read_word(Outcome, row.outcome) if row.outcome else None,
        reason=row.reason,
        log_tail=row.log_tail,
        total_steps=row.total_steps,
    )
