"""What a database needs over the years: old records taken away, and proofs that what it holds fits together."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    delete,
    exists,
    inspect,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import DatabaseError

from advisor.storage.repositories.jobs import Jobs
from advisor.storage.tables import (
    FINAL_JOBS,
    AgentRow,
    Base,
    IdempotencyRow,
    JobRow,
    LogRow,
    MemberRow,
    QuarantineRow,
    RunRow,
    SessionRow,
    TelemetryRow,
    TokenRow,
)
from advisor.storage.whole.invariants import list_broken, list_lost

_ALL = 2**31
"""More than any table holds."""


@dataclass(frozen=True)
class Ages:
    """Records from before these moments go."""

    telemetry: datetime
    """Samples of jobs that had ended by then; the sums that blocks and pages show stay."""
    logs: datetime
    """What the processes of jobs wrote that had ended by then; the tail of each failure stays."""
    quarantine: datetime
    """Results that did not count."""
    agents: datetime
    """Agents that were not heard of since, and that never had a part in a session; their tokens go with them."""
    tokens: datetime
    """Tokens that had been revoked or had expired by then, and keys of submissions that can hardly be repeated."""
    jobs: datetime
    """Jobs that had ended by then, with all that was ever stored for them. Archived ones stay, and those whose advice
    a real training was reported to follow since."""


class Upkeep:
    """The upkeep of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def prune(self, ages: Ages, most: int = _ALL) -> dict[str, int]:
        """Take old records away, at most so many of each kind, of which a job is a hundred; return how many went.

        What a job measured, its advice and its events go with the job only: it may be continued until then.
        """
        gone = {"jobs with all that they measured": self._drop_jobs(ages.jobs, -(-most // 100))}
        for kind, *which in _list_old(ages):
            gone[kind] = sum(self._delete(table, conditions, most) for table, conditions in which)
        ended = JobRow.id.in_(_ended(ages.logs))
        counted = update(JobRow).where(ended, JobRow.log_chars > 0).values(log_chars=0)
        self._connection.execute(counted)
        return gone

    def find_damage(self) -> list[str]:
        """Return a sentence for each rule that the database breaks; none when all is well."""
        if self._connection.dialect.name == "sqlite" and (damage := self._find_damage_of_file()):
            # What is in such a file may not even be read.
            return damage
        broken = list(list_broken(self._connection))
        if self._connection.dialect.name == "sqlite":
            lost = self._connection.execute(text("PRAGMA foreign_key_check")).all()
            broken += [
                f"Row {row[1]} of {row[0]} belongs to a row of {row[2]} that is missing" for row in lost
            ]
        return broken

    def _find_damage_of_file(self) -> list[str]:
        try:
            told = self._connection.execute(text("PRAGMA integrity_check")).scalars().all()
        except DatabaseError as error:
            told = [str(error.orig)]
        damage = [f"The file is damaged: {line}" for line in told if line != "ok"]
        if damage:
            # SQLite commits nothing any more, not even that something was read.
            self._connection.rollback()
        return damage

    def find_lost(self, accepted: Collection[str], quarantined: Collection[str]) -> list[str]:
        """Return a sentence where results are missing that agents were told about, by the ids of their blocks."""
        return list(list_lost(self._connection, accepted, quarantined))

    def _drop_jobs(self, before: datetime, most: int) -> int:
        followed = exists().where(RunRow.job_id == JobRow.id, RunRow.reported_at >= before)
        old = (
            _ended(before).where(JobRow.archived_at.is_(None), ~followed).order_by(JobRow.serial).limit(most)
        )
        # None of them may be continued in the meantime.
        found = self._connection.execute(old.with_for_update()).scalars().all()
        jobs = Jobs(self._connection)
        for job_id in found:
            jobs.delete(job_id)
        return len(found)

    def _delete(self, table: type[Base], conditions: Sequence[ColumnElement[bool]], most: int) -> int:
        keys = inspect(table).primary_key
        chosen = select(*keys).where(*conditions).limit(most)
        return self._connection.execute(delete(table).where(tuple_(*keys).in_(chosen))).rowcount


def _ended(before: datetime) -> Select[str]:
    return select(JobRow.id).where(JobRow.state.in_(FINAL_JOBS), JobRow.finished_at < before)


_Which = tuple[type[Base], tuple[ColumnElement[bool], ...]]


def _list_old(ages: Ages) -> Iterator[tuple[str, *tuple[_Which, ...]]]:
    """Each kind of old records in words, and where they are."""
    sessions = select(SessionRow.id).where(SessionRow.job_id.in_(_ended(ages.telemetry)))
    yield "telemetry samples", (TelemetryRow, (TelemetryRow.session_id.in_(sessions),))
    yield "chunks of log", (LogRow, (LogRow.job_id.in_(_ended(ages.logs)),))
    yield "quarantined results", (QuarantineRow, (QuarantineRow.received_at < ages.quarantine,))
    ended = (TokenRow.revoked_at < ages.tokens) | (TokenRow.expires_at < ages.tokens)
    keys = IdempotencyRow.created_at < ages.tokens
    yield "ended tokens and keys of submissions", (TokenRow, (ended,)), (IdempotencyRow, (keys,))
    unused = (
        AgentRow.last_seen_at < ages.agents,
        ~exists().where(MemberRow.agent_id == AgentRow.id),
        ~exists().where(TelemetryRow.agent_id == AgentRow.id),
    )
    theirs = TokenRow.agent_id.in_(select(AgentRow.id).where(*unused))
    tokenless = ~exists().where(TokenRow.agent_id == AgentRow.id)
    yield (
        "agents that measured nothing that is kept, and their tokens",
        (TokenRow, (theirs,)),
        (AgentRow, (*unused, tokenless)),
    )
