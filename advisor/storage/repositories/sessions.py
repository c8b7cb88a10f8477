"""Sessions: every transition names the generation and the states it may start from."""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, bindparam, exists, func, insert, or_, select, update

from advisor.protocol.measured.messages import LAUNCH_FAILED, MemberState
from advisor.protocol.measured.trials import Outcome, Session, SessionState
from advisor.protocol.training.workload import WorkloadFacts
from advisor.storage.columns import AnyRow
from advisor.storage.page_sizes import Part, count_fitting
from advisor.storage.tables import LIVE_SESSIONS, AgentRow, JobRow, MemberRow, SessionRow

STARTED = [SessionState.ASSEMBLING, SessionState.RUNNING]


class Sessions:
    """The sessions of one transaction."""

    def __init__(self, connection: Connection, left: set[str]) -> None:
        """`left` is given the sessions that are asked to end or have ended."""
        self._connection, self._left = connection, left

    def add(self, session: Session) -> None:
        """Store a new session; a unique index refuses a second live one of a job."""
        stored = set(Session.model_fields) - {"agents"}
        self._connection.execute(insert(SessionRow).values({name: getattr(session, name) for name in stored}))

    def get(self, session_id: str) -> Session | None:
        """Return a session."""
        row = self._connection.execute(_GET, {"session": session_id}).one_or_none()
        if row is None:
            return None
        return _session(row, tuple(self._connection.execute(_AGENTS_OF, {"session": session_id}).scalars()))

    def generation_of(self, session_id: str) -> int:
        """Return the generation of a session, readable or not."""
        query = select(SessionRow.generation).where(SessionRow.id == session_id)
        return self._connection.execute(query).scalar_one()

    def live_of(self, job_id: str) -> Session | None:
        """Return the session that the job holds."""
        return next((session for session in self.of_job(job_id) if not session.state.is_final), None)

    def of_job(self, job_id: str) -> tuple[Session, ...]:
        """Return all sessions of a job, oldest first."""
        rows = self._connection.execute(_OF_JOB, {"job": job_id}).all()
        agents = self._agents([row.id for row in rows])
        return tuple(_session(row, agents[row.id]) for row in rows)

    def page(self, job_id: str, limit: int, after: int | None) -> Part[tuple[int, Session]]:
        """Return sessions of a job with their generations, oldest first, those above `after`."""
        query = select(SessionRow).where(SessionRow.job_id == job_id).order_by(SessionRow.generation)
        if after is not None:
            query = query.where(SessionRow.generation > after)
        most = count_fitting(self._connection, query, limit, SessionRow)
        rows = self._connection.execute(query.limit(most + 1)).all()
        agents = self._agents([row.id for row in rows])
        return Part([(row.generation, _session(row, agents[row.id])) for row in rows], most)

    def rendezvous(self, session_id: str) -> str | None:
        """Return where the gang meets."""
        return self._connection.execute(_RENDEZVOUS, {"session": session_id}).scalar_one_or_none()

    def offer_rendezvous(self, session_id: str, generation: int, rendezvous: str) -> bool:
        """Set where the gang meets, once."""
        query = (
            update(SessionRow)
            .where(
                SessionRow.id == session_id,
                SessionRow.generation == generation,
                SessionRow.state == SessionState.ASSEMBLING,
                SessionRow.rendezvous.is_(None),
            )
            .values(rendezvous=rendezvous)
        )
        return self._connection.execute(query).rowcount == 1

    def learn(self, session_id: str, facts: WorkloadFacts) -> None:
        """Keep what the runtime saw of the script in this launch; what it said first stands."""
        query = update(SessionRow).where(SessionRow.id == session_id, SessionRow.facts.is_(None))
        self._connection.execute(query.values(facts=facts))

    def start(self, session_id: str, generation: int, now: datetime) -> bool:
        """Make an assembled gang's session running; refused while a member prepares or has gone."""
        unready = exists().where(
            MemberRow.session_id == session_id,
            MemberRow.state.in_([MemberState.PREPARING, MemberState.GONE]),
        )
        query = (
            update(SessionRow)
            .where(
                SessionRow.id == session_id,
                SessionRow.generation == generation,
                SessionRow.state == SessionState.ASSEMBLING,
                SessionRow.rendezvous.is_not(None),
                ~unready,
            )
            .values(state=SessionState.RUNNING, started_at=now)
        )
        return self._connection.execute(query).rowcount == 1

    def end(self, session_id: str, generation: int, outcome: Outcome | None, reason: str) -> bool:
        """Ask the gang to end. An `outcome` given here stands; None leaves it to what the members report."""
        self._left.add(session_id)
        query = (
            update(SessionRow)
            .where(
                SessionRow.id == session_id,
                SessionRow.generation == generation,
                SessionRow.state.in_(STARTED),
            )
            .values(state=SessionState.ENDING, outcome=outcome, reason=reason)
        )
        return self._connection.execute(query).rowcount == 1

    def note_trouble(self, session_id: str, generation: int, code: str, sentence: str, fatal: bool) -> bool:
        """Keep a live session's first trouble; its sentence becomes the session's reason.

        A session that the server asked to end takes no trouble: its nodes then report what the end did to them. A
        failed launch may follow from another node's trouble, which takes its place.
        """
        query = (
            update(SessionRow)
            .where(
                SessionRow.id == session_id,
                SessionRow.generation == generation,
                SessionRow.state.in_(LIVE_SESSIONS),
                or_(SessionRow.trouble_code.is_(None), SessionRow.trouble_code == LAUNCH_FAILED),
                SessionRow.trouble_code.is_distinct_from(code),
                SessionRow.outcome.is_(None),
            )
            .values(trouble_code=code, trouble_fatal=fatal, reason=sentence)
        )
        return self._connection.execute(query).rowcount == 1

    def forget_trouble(self, session_id: str) -> None:
        """Take a session's trouble back."""
        query = update(SessionRow).where(SessionRow.id == session_id)
        self._connection.execute(query.values(trouble_code=None, trouble_fatal=False))

    def trouble_of(self, session_id: str) -> str | None:
        """Return the code of the trouble that the session had."""
        return self._connection.execute(
            select(SessionRow.trouble_code).where(SessionRow.id == session_id)
        ).scalar_one_or_none()

    def fatal_trouble(self, job_id: str) -> str | None:
        """Return the sentence of the trouble that makes another launch pointless, if the last session had one.

        What ailed a job before it was continued may be mended since.
        """
        row = self._connection.execute(_LAST_TROUBLE, {"job": job_id}).one_or_none()
        if row is None or not row.trouble_fatal or any(row.created_at < at for at in row.continued_at[-1:]):
            return None
        reason: str = row.reason
        return reason

    def close(
        self,
        session_id: str,
        generation: int,
        state: SessionState,
        outcome: Outcome,
        reason: str,
        *,
        log_tail: str,
        total_steps: int,
        now: datetime,
    ) -> bool:
        """Put a live session into a final state.

        It ended when the last of its agents was last heard of: no agent held anything in the hours in which all of them
        and this server were away.
        """
        self._left.add(session_id)
        query = (
            update(SessionRow)
            .where(
                SessionRow.id == session_id,
                SessionRow.generation == generation,
                SessionRow.state.in_(LIVE_SESSIONS),
            )
            .values(
                state=state,
                outcome=outcome,
                reason=reason,
                log_tail=log_tail,
                total_steps=total_steps,
                ended_at=self._find_end(session_id, now),
            )
        )
        return self._connection.execute(query).rowcount == 1

    def _find_end(self, session_id: str, now: datetime) -> datetime:
        row = self._connection.execute(_HEARD, {"session": session_id}).one_or_none()
        if row is None:
            return now
        began_at: datetime = row.started_at or row.created_at
        return max(began_at, min(now, row.heard_at or now))

    def is_holding(self, job_id: str) -> bool:
        """Return whether a job has a live session, readable or not."""
        query = select(exists().where(SessionRow.job_id == job_id, SessionRow.state.in_(LIVE_SESSIONS)))
        return self._connection.execute(query).scalar_one()

    def _agents(self, session_ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
        for row in self._connection.execute(_AGENTS, {"sessions": list(session_ids)}):
            found[row.session_id] += (row.name,)
        return found


# Every beat runs these, or every second: putting a statement together takes several times as long as running it.
_GET = select(SessionRow).where(SessionRow.id == bindparam("session"))
_OF_JOB = select(SessionRow).where(SessionRow.job_id == bindparam("job")).order_by(SessionRow.generation)
_LAST_TROUBLE = (
    select(SessionRow.trouble_fatal, SessionRow.reason, SessionRow.created_at, JobRow.continued_at)
    .join(JobRow, JobRow.id == SessionRow.job_id)
    .where(SessionRow.job_id == bindparam("job"))
    .order_by(SessionRow.generation.desc())
    .limit(1)
)
_RENDEZVOUS = select(SessionRow.rendezvous).where(SessionRow.id == bindparam("session"))
_HEARD = (
    select(
        SessionRow.created_at,
        SessionRow.started_at,
        func.max(func.coalesce(MemberRow.heard_at, AgentRow.last_seen_at)).label("heard_at"),
    )
    .outerjoin(MemberRow, MemberRow.session_id == SessionRow.id)
    .outerjoin(AgentRow, AgentRow.id == MemberRow.agent_id)
    .where(SessionRow.id == bindparam("session"))
    .group_by(SessionRow.id)
)
_AGENTS_OF = (
    select(AgentRow.name)
    .join(MemberRow, AgentRow.id == MemberRow.agent_id)
    .where(MemberRow.session_id == bindparam("session"))
    .order_by(MemberRow.node_rank)
)
_AGENTS = (
    select(MemberRow.session_id, AgentRow.name)
    .join(AgentRow, AgentRow.id == MemberRow.agent_id)
    .where(MemberRow.session_id.in_(bindparam("sessions", expanding=True)))
    .order_by(MemberRow.node_rank)
)


def _session(row: AnyRow, agents: tuple[str, ...]) -> Session:
    stored = {name: getattr(row, name) for name in Session.model_fields if name != "agents"}
    return Session.model_construct(
        **stored
        | {
            "state": SessionState(row.state),
            "outcome": Outcome(row.outcome) if row.outcome else None,
            "agents": agents,
        }
    )
