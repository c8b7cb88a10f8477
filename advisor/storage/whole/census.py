"""How many there are of each kind, by state: one aggregated query a kind, for operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Select, case, exists, func, select

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.views import AgentState
from advisor.storage.tables import LIVE_SESSIONS, AgentRow, JobRow, MemberRow, SessionRow


@dataclass(frozen=True)
class Census:
    """Counts by state; a state that nothing is in counts 0."""

    jobs: Mapping[str, int]
    agents: Mapping[str, int]
    sessions: Mapping[str, int]
    """Live ones."""
    members: Mapping[str, int]
    """Agents that hold a session, by what their part of it is doing."""


class Counts:
    """Counts what one transaction sees."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self, silent_since: datetime) -> Census:
        """Return the counts; one that holds no session and was last seen before `silent_since` is silent."""
        holds_session = exists().where(MemberRow.agent_id == AgentRow.id, MemberRow.live)
        doing = case(
            (AgentRow.revoked_at.is_not(None), AgentState.REVOKED.value),
            (holds_session, AgentState.BUSY.value),
            (AgentRow.last_seen_at < silent_since, AgentState.SILENT.value),
            else_=AgentState.IDLE.value,
        )
        agents = select(doing.label("state")).where(AgentRow.removed_at.is_(None)).subquery()
        return Census(
            jobs=self._count(select(JobRow.state, func.count()).group_by(JobRow.state), list(JobState)),
            agents=self._count(
                select(agents.c.state, func.count()).group_by(agents.c.state), list(AgentState)
            ),
            sessions=self._count(
                select(SessionRow.state, func.count())
                .where(SessionRow.state.in_(LIVE_SESSIONS))
                .group_by(SessionRow.state),
                LIVE_SESSIONS,
            ),
            members=self._count(
                select(MemberRow.state, func.count()).where(MemberRow.live).group_by(MemberRow.state),
                list(MemberState),
            ),
        )

    def _count(self, query: Select[str, int], states: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(map(str, states), 0) | {
            row[0]: row[1] for row in self._connection.execute(query)
        }
