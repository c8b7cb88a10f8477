"""Agents and tokens: who may speak to the server."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, insert, select, update

from advisor.protocol.measured.telemetry import NodeFlag
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.views import Role, TokenView
from advisor.storage.columns import AnyRow, read_each
from advisor.storage.page_sizes import Part, count_fitting
from advisor.storage.repositories.sessions import STARTED
from advisor.storage.tables import AgentRow, MemberRow, SessionRow, TokenRow


@dataclass(frozen=True)
class Agent:
    """An agent, and the session it holds."""

    id: str
    name: str
    node: Node
    last_seen_at: datetime
    session_id: str | None = None
    job_id: str | None = None
    flag: NodeFlag | None = None
    revoked_at: datetime | None = None
    """Since when it is turned out."""
    secret_sha256: str | None = None
    """Of the secret that proves it; None once its name was readmitted: the next agent that registers so gets it."""
    drained_because: str | None = None
    """Why it takes no further session; None while it does."""
    ends_at: datetime | None = None
    """When its allocation ends and the agent with it; None: no end is known."""
    removed_at: datetime | None = None
    """Since when it is removed: only its name is known, until an agent registers under it."""


class Agents:
    """The agents of one transaction. One that was removed is found by its name only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(
        self,
        agent_id: str,
        name: str,
        node: Node,
        now: datetime,
        secret_sha256: str | None = None,
        ends_at: datetime | None = None,
    ) -> None:
        """Store a new agent; its name must be free."""
        self._connection.execute(
            insert(AgentRow).values(
                id=agent_id,
                name=name,
                node=node,
                secret_sha256=secret_sha256,
                registered_at=now,
                last_seen_at=now,
                ends_at=ends_at,
            )
        )

    def find(self, name: str) -> Agent | None:
        """Return the agent with that name."""
        row = self._connection.execute(_WITH_SESSION.where(AgentRow.name == name)).one_or_none()
        return _agent(row) if row else None

    def exists(self, agent_id: str) -> bool:
        """Return whether an agent is known."""
        return self._connection.execute(_EXISTS, {"agent": agent_id}).scalar_one_or_none() is not None

    def count(self) -> int:
        """Return how many agents are known."""
        query = select(func.count()).select_from(AgentRow).where(_KNOWN)
        return self._connection.execute(query).scalar_one()

    def introduce_again(
        self,
        agent_id: str,
        node: Node,
        now: datetime,
        secret_sha256: str | None,
        ends_at: datetime | None = None,
        *,
        was_removed: bool = False,
    ) -> bool:
        """Note that an agent has started again, perhaps on other hardware and for another while.

        Return whether it still was what `was_removed` says: a user may have removed it since it was looked up.
        """
        known = AgentRow.removed_at.is_not(None) if was_removed else _KNOWN
        query = update(AgentRow).where(AgentRow.id == agent_id, known)
        values = {"node": node, "secret_sha256": secret_sha256, "ends_at": ends_at, "removed_at": None}
        query = query.values(registered_at=now, last_seen_at=now, flag=None, **values)
        return self._connection.execute(query).rowcount == 1

    def turn_out(self, agent_id: str, now: datetime) -> None:
        """Let an agent register no more."""
        query = update(AgentRow).where(AgentRow.id == agent_id, AgentRow.revoked_at.is_(None))
        self._connection.execute(query.values(revoked_at=now))

    def readmit(self, agent_id: str) -> bool:
        """Let an agent register again, also with another secret; return whether it is known."""
        return self._change(agent_id, revoked_at=None, secret_sha256=None)

    def drain(self, agent_id: str, because: str) -> bool:
        """Give an agent no further session, with the reason. Return whether it is known."""
        return self._change(agent_id, drained_because=because)

    def resume(self, agent_id: str) -> bool:
        """Give an agent sessions again, drained or set aside. Return whether it is known."""
        return self._change(agent_id, drained_because=None, flag=None)

    def hold(self, agent_id: str) -> bool:
        """Keep other transactions from giving an agent a session or removing it until this one ends.

        Return whether it is known.
        """
        query = select(AgentRow.id).where(AgentRow.id == agent_id, _KNOWN).with_for_update()
        return self._connection.execute(query).one_or_none() is not None

    def remove(self, agent_id: str, now: datetime) -> None:
        """Forget all of an agent but its name and its node, which tell what was measured with it."""
        nothing = dict.fromkeys(("secret_sha256", "revoked_at", "drained_because", "flag", "ends_at"))
        self._change(agent_id, removed_at=now, **nothing)

    def see(self, agent_id: str, now: datetime) -> bool:
        """Note that an agent was heard of; return whether it is known."""
        query = update(AgentRow).where(AgentRow.id == agent_id).values(last_seen_at=now)
        return self._connection.execute(query).rowcount == 1

    def see_all(self, heard: Mapping[str, datetime]) -> None:
        """Note when agents were heard of."""
        query = update(AgentRow).where(AgentRow.id == bindparam("agent"))
        seen = [{"agent": agent_id, "at": at} for agent_id, at in sorted(heard.items())]
        self._connection.execute(query.values(last_seen_at=bindparam("at")), seen)

    def set_flag(self, name: str, flag: NodeFlag | None) -> None:
        """Note what speaks against an agent's node; None when nothing does any more."""
        self._connection.execute(update(AgentRow).where(AgentRow.name == name).values(flag=flag))

    def flag_of(self, name: str) -> NodeFlag | None:
        """Return what speaks against an agent's node."""
        query = select(AgentRow.flag).where(AgentRow.name == name)
        flag: NodeFlag | None = self._connection.execute(query).scalar_one_or_none()
        return flag

    def all(self) -> list[Agent]:
        """Return all agents by name, with the sessions they hold."""
        query = _WITH_SESSION.where(_KNOWN).order_by(AgentRow.name)
        return read_each(self._connection, query, AgentRow.id, _agent)

    def page(self, limit: int, after: str | None, name: str | None = None) -> Part[tuple[str, Agent]]:
        """Return agents with their names, in that order: those behind `after`; with `name` the one that has it."""
        query = _WITH_SESSION.where(_KNOWN).order_by(AgentRow.name)
        if name is not None:
            query = query.where(AgentRow.name == name)
        if after is not None:
            query = query.where(AgentRow.name > after)
        most = count_fitting(self._connection, query, limit, AgentRow)
        found = read_each(self._connection, query, AgentRow.id, _agent, most + 1)
        return Part([(agent.name, agent) for agent in found], most)

    def leaving(self, before: datetime) -> dict[str, str]:
        """Return the sessions that go on and hold an agent whose allocation ends before then, with such an agent."""
        return {row.session_id: row.name for row in self._connection.execute(_LEAVING, {"before": before})}

    def lock(self, agent_ids: Collection[str]) -> list[Agent]:
        """Return those of these agents that may take a session, and keep other transactions from allocating any until
        this one ends."""
        # In one fixed order, so that two allocations cannot wait for each other.
        rows = select(AgentRow.id).where(AgentRow.id.in_(agent_ids)).order_by(AgentRow.id)
        self._connection.execute(rows.with_for_update()).all()
        query = _WITH_SESSION.where(AgentRow.id.in_(agent_ids), _KNOWN).order_by(AgentRow.name)
        found = [_agent(row) for row in self._connection.execute(query)]
        return [agent for agent in found if agent.revoked_at is None and agent.drained_because is None]

    def _change(self, agent_id: str, **values: object) -> bool:
        query = update(AgentRow).where(AgentRow.id == agent_id, _KNOWN).values(**values)
        return self._connection.execute(query).rowcount == 1


class Tokens:
    """The tokens of one transaction. Secrets never get here, only their hashes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.have_changed = False
        """Whether this transaction has let anybody in or out."""

    def add(
        self,
        token_id: str,
        role: Role,
        label: str,
        secret_sha256: str,
        now: datetime,
        agent_id: str | None = None,
        *,
        expires_at: datetime | None = None,
        uses: int | None = None,
        team: str = "",
    ) -> None:
        """Store a new token."""
        self._connection.execute(
            insert(TokenRow).values(
                id=token_id,
                role=role,
                label=label,
                secret_sha256=secret_sha256,
                agent_id=agent_id,
                created_at=now,
                expires_at=expires_at,
                uses_left=uses,
                team=team,
            )
        )

    def secret_of(self, token_id: str) -> tuple[str, TokenView, str | None] | None:
        """Return the hash, the token and its agent's id."""
        row = self._connection.execute(_TOKEN, {"token": token_id}).one_or_none()
        return (row.secret_sha256, _token(row), row.agent_id) if row else None

    def mark_used(self, token_id: str, now: datetime) -> None:
        """Note that a token was used, unless a later use is known. It changes no right."""
        query = update(TokenRow).where(
            TokenRow.id == token_id, TokenRow.last_used_at.is_(None) | (TokenRow.last_used_at < now)
        )
        self._connection.execute(query.values(last_used_at=now))

    def use_up(self, token_id: str, now: datetime) -> bool:
        """Take one of the uses that a token has; return whether there was one left."""
        self.have_changed = True
        query = (
            update(TokenRow)
            .where(TokenRow.id == token_id, TokenRow.uses_left.is_(None) | (TokenRow.uses_left > 0))
            .values(uses_left=TokenRow.uses_left - 1, last_used_at=now)
        )
        return self._connection.execute(query).rowcount == 1

    def expire(self, token_id: str, at: datetime) -> None:
        """Let a token end at that moment, unless it ends before."""
        self.have_changed = True
        query = update(TokenRow).where(
            TokenRow.id == token_id, TokenRow.expires_at.is_(None) | (TokenRow.expires_at > at)
        )
        self._connection.execute(query.values(expires_at=at))

    def page(
        self, limit: int, before: tuple[datetime, str] | None = None, of_agents: bool | None = None
    ) -> list[TokenView]:
        """Return tokens, newest first: those behind the one that was made at that moment and has that id.

        `of_agents`: those that agents got for themselves, or the others; None for both.
        """
        query = _TOKENS.order_by(TokenRow.created_at.desc(), TokenRow.id).limit(limit)
        if of_agents is not None:
            query = query.where(TokenRow.agent_id.is_not(None) if of_agents else TokenRow.agent_id.is_(None))
        if before is not None:
            made_at, token_id = before
            same = (TokenRow.created_at == made_at) & (TokenRow.id > token_id)
            query = query.where((TokenRow.created_at < made_at) | same)
        return [_token(row) for row in self._connection.execute(query)]

    def revoke(self, token_id: str, now: datetime) -> bool:
        """Make a token useless; return whether it was of use."""
        self.have_changed = True
        query = update(TokenRow).where(TokenRow.id == token_id, TokenRow.revoked_at.is_(None))
        return self._connection.execute(query.values(revoked_at=now)).rowcount == 1

    def revoke_of_agent(self, agent_id: str, now: datetime) -> None:
        """Make an agent's own tokens useless."""
        self.have_changed = True
        query = update(TokenRow).where(TokenRow.agent_id == agent_id, TokenRow.revoked_at.is_(None))
        self._connection.execute(query.values(revoked_at=now))


_KNOWN = AgentRow.removed_at.is_(None)
_WITH_SESSION = (
    select(AgentRow, MemberRow.session_id, SessionRow.job_id)
    .outerjoin(MemberRow, (MemberRow.agent_id == AgentRow.id) & MemberRow.live)
    .outerjoin(SessionRow, SessionRow.id == MemberRow.session_id)
)
_TOKENS = select(
    TokenRow, AgentRow.name.label("agent"), AgentRow.last_seen_at.label("agent_seen_at")
).outerjoin(AgentRow, AgentRow.id == TokenRow.agent_id)


_TOKEN = _TOKENS.where(TokenRow.id == bindparam("token"))
_EXISTS = select(AgentRow.id).where(AgentRow.id == bindparam("agent"), _KNOWN)
# Looked at every second, jobs or none.
_LEAVING = (
    select(MemberRow.session_id, AgentRow.name)
    .join(AgentRow, AgentRow.id == MemberRow.agent_id)
    .join(SessionRow, SessionRow.id == MemberRow.session_id)
    .where(MemberRow.live, AgentRow.ends_at < bindparam("before"), SessionRow.state.in_(STARTED))
    .order_by(AgentRow.name.desc())
)


def _agent(row: AnyRow) -> Agent:
    return Agent(
        row.id,
        row.name,
        row.node,
        row.last_seen_at,
        row.session_id,
        row.job_id,
        row.flag,
        row.revoked_at,
        row.secret_sha256,
        row.drained_because,
        row.ends_at,
        row.removed_at,
    )


def _token(row: AnyRow) -> TokenView:
    # An agent shows its own token whenever it is seen: nothing has to be noted beside that.
    used_at = row.last_used_at or row.agent_seen_at
    if row.agent_seen_at is not None and row.revoked_at is not None:
        used_at = min(used_at, row.revoked_at)
    return TokenView(
        id=row.id,
        role=Role(row.role),
        label=row.label,
        agent=row.agent,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        expires_at=row.expires_at,
        uses_left=row.uses_left,
        team=row.team,
        last_used_at=used_at,
    )
