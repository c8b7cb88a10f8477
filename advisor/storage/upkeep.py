"""What a database needs over the years: old records taken away, and proofs that what it holds fits together."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Delete, Select, delete, exists, func, select, text, update

from advisor.protocol.jobs import JobState
from advisor.protocol.trials import BlockState, SessionState, TrialState
from advisor.storage.tables import (
    AgentRow,
    BlockRow,
    IdempotencyRow,
    JobRow,
    LogRow,
    MemberRow,
    QuarantineRow,
    ResultRow,
    SessionRow,
    TelemetryRow,
    TokenRow,
    TrialRow,
)

_FINAL_JOBS = [state for state in JobState if state.is_final]
_FINAL_SESSIONS = [state for state in SessionState if state.is_final]
_SHOWN = 5
"""Offenders that are named for each rule."""


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
    """Tokens that had been revoked by then, and keys of submissions that can hardly be repeated any more."""


class Upkeep:
    """The upkeep of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def prune(self, ages: Ages) -> dict[str, int]:
        """Take old records away; return how many of each kind. Advice, results, trials and events stay."""
        return {
            kind: sum(self._connection.execute(statement).rowcount for statement in statements)
            for kind, statements in _list_old(ages)
        } | {"chunks of log": self._drop_logs(ages.logs)}

    def find_damage(self) -> list[str]:
        """Return a sentence for each rule that the database breaks; none when all is well."""
        broken = [f"{sentence}: {names}" for sentence, names in self._list_broken()]
        if self._connection.dialect.name == "sqlite":
            told = self._connection.execute(text("PRAGMA integrity_check")).scalars().all()
            broken += [f"The file is damaged: {line}" for line in told if line != "ok"]
            lost = self._connection.execute(text("PRAGMA foreign_key_check")).all()
            broken += [
                f"Row {row[1]} of {row[0]} belongs to a row of {row[2]} that is missing" for row in lost
            ]
        return broken

    def _drop_logs(self, before: datetime) -> int:
        ended = _ended(before)
        dropped = self._connection.execute(delete(LogRow).where(LogRow.job_id.in_(ended))).rowcount
        counted = update(JobRow).where(JobRow.id.in_(ended), JobRow.log_chars > 0)
        self._connection.execute(counted.values(log_chars=0))
        return dropped

    def _list_broken(self) -> Iterator[tuple[str, str]]:
        for sentence, query in _RULES:
            found = self._connection.execute(query.limit(_SHOWN)).scalars().all()
            if found:
                yield sentence, ", ".join(str(name) for name in found)


def _ended(before: datetime) -> Select[str]:
    return select(JobRow.id).where(JobRow.state.in_(_FINAL_JOBS), JobRow.finished_at < before)


def _list_old(ages: Ages) -> Iterator[tuple[str, list[Delete]]]:
    sessions = select(SessionRow.id).where(SessionRow.job_id.in_(_ended(ages.telemetry)))
    yield "telemetry samples", [delete(TelemetryRow).where(TelemetryRow.session_id.in_(sessions))]
    yield "quarantined results", [delete(QuarantineRow).where(QuarantineRow.received_at < ages.quarantine)]
    revoked = delete(TokenRow).where(TokenRow.revoked_at < ages.tokens)
    keys = delete(IdempotencyRow).where(IdempotencyRow.created_at < ages.tokens)
    yield "revoked tokens and keys of submissions", [revoked, keys]
    unused = (
        AgentRow.last_seen_at < ages.agents,
        ~exists().where(MemberRow.agent_id == AgentRow.id),
        ~exists().where(TelemetryRow.agent_id == AgentRow.id),
    )
    theirs = delete(TokenRow).where(TokenRow.agent_id.in_(select(AgentRow.id).where(*unused)))
    yield "agents that never measured, and their tokens", [theirs, delete(AgentRow).where(*unused)]


_RULES: tuple[tuple[str, Select[str]], ...] = (
    (
        "Jobs that have ended hold a live session",
        select(SessionRow.job_id)
        .join(JobRow, JobRow.id == SessionRow.job_id)
        .where(JobRow.state.in_(_FINAL_JOBS), SessionRow.state.not_in(_FINAL_SESSIONS)),
    ),
    (
        "Sessions that are over hold agents",
        select(SessionRow.id)
        .join(MemberRow, MemberRow.session_id == SessionRow.id)
        .where(SessionRow.state.in_(_FINAL_SESSIONS), MemberRow.live),
    ),
    (
        "Sessions have a generation that their job never gave",
        select(SessionRow.id)
        .join(JobRow, JobRow.id == SessionRow.job_id)
        .where(SessionRow.generation > JobRow.generation),
    ),
    (
        "Blocks are being measured in sessions that are over",
        select(BlockRow.id)
        .join(SessionRow, SessionRow.id == BlockRow.session_id)
        .where(BlockRow.state == BlockState.ISSUED, SessionRow.state.in_(_FINAL_SESSIONS)),
    ),
    (
        "Measured blocks have no result",
        select(BlockRow.id).where(
            BlockRow.state == BlockState.DONE, ~exists().where(ResultRow.block_id == BlockRow.id)
        ),
    ),
    (
        "Blocks have a result and do not count as measured",
        select(BlockRow.id)
        .join(ResultRow, ResultRow.block_id == BlockRow.id)
        .where(BlockRow.state != BlockState.DONE),
    ),
    (
        "Jobs that have ended have open trials",
        select(TrialRow.job_id)
        .join(JobRow, JobRow.id == TrialRow.job_id)
        .where(JobRow.state.in_(_FINAL_JOBS), TrialRow.state == TrialState.OPEN)
        .distinct(),
    ),
    (
        "Blocks belong to trials that are missing",
        select(BlockRow.id).where(
            ~exists().where(TrialRow.job_id == BlockRow.job_id, TrialRow.number == BlockRow.trial_number)
        ),
    ),
    (
        "Agents hold more than one place",
        select(MemberRow.agent_id)
        .where(MemberRow.live)
        .group_by(MemberRow.agent_id)
        .having(func.count() > 1),
    ),
)
