"""What holds in the tables whatever fails: each rule with the query that finds what breaks it, for checks and tests."""

from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy import Connection, Select, exists, func, select

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.trials import BlockState, Outcome, TrialState
from advisor.storage.repositories.blocks import MAX_QUARANTINED
from advisor.storage.tables import (
    FINAL_JOBS,
    FINAL_SESSIONS,
    AdviceRow,
    AgentRow,
    BlockRow,
    EventRow,
    JobRow,
    MemberRow,
    QuarantineRow,
    ResultRow,
    SessionRow,
    TrialRow,
)

_SHOWN = 5
"""Offenders that are named for each rule."""
_AT_ONCE = 500
"""Blocks that are asked for in one statement."""


def list_broken(connection: Connection) -> Iterator[str]:
    """A sentence for each rule that what is stored breaks."""
    for sentence, query in RULES:
        found = connection.execute(query.limit(_SHOWN)).scalars().all()
        if found:
            yield f"{sentence}: {', '.join(str(name) for name in found)}"


def list_lost(
    connection: Connection, accepted: Collection[str], quarantined: Collection[str]
) -> Iterator[str]:
    """A sentence where results are missing that agents were told about, by the ids of their blocks.

    The oldest results that an agent has in quarantine make room for its latest: once that was so, none is missed.
    """
    gone = sorted(_list_absent(connection, select(ResultRow.block_id), accepted))
    if gone:
        yield f"Accepted results are gone: {_name(gone)}"
    is_full = select(QuarantineRow.agent_id).group_by(QuarantineRow.agent_id)
    if connection.execute(is_full.having(func.count() >= MAX_QUARANTINED).limit(1)).first() is not None:
        return
    gone = sorted(_list_absent(connection, select(QuarantineRow.block_id), quarantined))
    if gone:
        yield f"Results are gone from the quarantine: {_name(gone)}"


def _list_absent(connection: Connection, query: Select[str], wanted: Collection[str]) -> set[str]:
    blocks, (column,) = list(wanted), query.selected_columns
    missing = set(blocks)
    for start in range(0, len(blocks), _AT_ONCE):
        there = query.where(column.in_(blocks[start : start + _AT_ONCE]))
        missing.difference_update(connection.execute(there).scalars())
    return missing


def _name(blocks: list[str]) -> str:
    more = f" and {len(blocks) - _SHOWN} more" if len(blocks) > _SHOWN else ""
    return ", ".join(blocks[:_SHOWN]) + more


RULES: tuple[tuple[str, Select[Any]], ...] = (
    # At most one live session for each job, and one place for each agent.
    (
        "Jobs hold more than one live session",
        select(SessionRow.job_id)
        .where(SessionRow.state.not_in(FINAL_SESSIONS))
        .group_by(SessionRow.job_id)
        .having(func.count() > 1),
    ),
    (
        "Agents hold more than one place",
        select(MemberRow.agent_id)
        .where(MemberRow.live)
        .group_by(MemberRow.agent_id)
        .having(func.count() > 1),
    ),
    (
        "Agents that were removed hold a place",
        select(MemberRow.agent_id)
        .join(AgentRow, AgentRow.id == MemberRow.agent_id)
        .where(MemberRow.live, AgentRow.removed_at.is_not(None)),
    ),
    (
        "Sessions that are over hold agents",
        select(SessionRow.id)
        .join(MemberRow, MemberRow.session_id == SessionRow.id)
        .where(SessionRow.state.in_(FINAL_SESSIONS), MemberRow.live)
        .distinct(),
    ),
    (
        "Sessions that are not over have let agents go",
        select(SessionRow.id)
        .outerjoin(MemberRow, MemberRow.session_id == SessionRow.id)
        .where(SessionRow.state.not_in(FINAL_SESSIONS), MemberRow.live.is_not(True))
        .distinct(),
    ),
    # Generations grow by one with every session, and fence it.
    (
        "Sessions have a generation that their job never gave",
        select(SessionRow.id)
        .join(JobRow, JobRow.id == SessionRow.job_id)
        .where(SessionRow.generation > JobRow.generation),
    ),
    (
        "Jobs have given generations to no session",
        select(JobRow.id)
        .outerjoin(SessionRow, SessionRow.job_id == JobRow.id)
        .group_by(JobRow.id, JobRow.generation)
        .having(func.count(SessionRow.id) < JobRow.generation),
    ),
    (
        "Results were accepted under another generation than their session's",
        select(ResultRow.block_id)
        .join(BlockRow, BlockRow.id == ResultRow.block_id)
        .join(SessionRow, SessionRow.id == BlockRow.session_id)
        .where(ResultRow.generation != SessionRow.generation),
    ),
    # A result is accepted, or in quarantine.
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
        "Results count and are in quarantine as well",
        select(ResultRow.block_id)
        .join(BlockRow, BlockRow.id == ResultRow.block_id)
        .join(
            QuarantineRow,
            (QuarantineRow.block_id == ResultRow.block_id)
            & (QuarantineRow.session_id == BlockRow.session_id)
            & (QuarantineRow.payload_sha256 == ResultRow.payload_sha256)
            & (QuarantineRow.generation == ResultRow.generation),
        )
        # What another agent hands in as its own is kept, and counts no more than any copy.
        .join(
            MemberRow,
            (MemberRow.session_id == BlockRow.session_id)
            & (MemberRow.agent_id == QuarantineRow.agent_id)
            & (MemberRow.node_rank == 0),
        ),
    ),
    (
        "Arms of one race had different fates",
        select(BlockRow.session_id)
        .group_by(BlockRow.session_id, BlockRow.race, BlockRow.issued_at)
        .having(func.count(BlockRow.state.distinct()) > 1),
    ),
    (
        "Blocks are being measured in sessions that are over",
        select(BlockRow.id)
        .join(SessionRow, SessionRow.id == BlockRow.session_id)
        .where(BlockRow.state == BlockState.ISSUED, SessionRow.state.in_(FINAL_SESSIONS)),
    ),
    (
        "Sessions have lost blocks",
        select(BlockRow.session_id)
        .group_by(BlockRow.session_id)
        .having(func.count() != func.max(BlockRow.ordinal) + 1),
    ),
    # A trial ends with what was measured for it.
    (
        "Blocks belong to trials that are missing",
        select(BlockRow.id).where(
            ~exists().where(TrialRow.job_id == BlockRow.job_id, TrialRow.number == BlockRow.trial_number)
        ),
    ),
    (
        "Trials have finished and were never measured",
        select(TrialRow.job_id)
        .where(
            TrialRow.outcome == Outcome.FINISHED,
            ~exists().where(
                BlockRow.job_id == TrialRow.job_id,
                BlockRow.trial_number == TrialRow.number,
                BlockRow.state == BlockState.DONE,
            ),
        )
        .distinct(),
    ),
    # Jobs end with everything that belongs to them.
    (
        "Jobs that have ended hold a live session",
        select(SessionRow.job_id)
        .join(JobRow, JobRow.id == SessionRow.job_id)
        .where(JobRow.state.in_(FINAL_JOBS), SessionRow.state.not_in(FINAL_SESSIONS))
        .distinct(),
    ),
    (
        "Jobs that have ended have open trials",
        select(TrialRow.job_id)
        .join(JobRow, JobRow.id == TrialRow.job_id)
        .where(JobRow.state.in_(FINAL_JOBS), TrialRow.state == TrialState.OPEN)
        .distinct(),
    ),
    (
        "Jobs have finished without advice",
        select(JobRow.id).where(
            JobRow.state == JobState.FINISHED, ~exists().where(AdviceRow.job_id == JobRow.id)
        ),
    ),
    (
        "Jobs are being cancelled and hold no session whose end would cancel them",
        select(JobRow.id).where(
            JobRow.state == JobState.CANCELLING,
            ~exists().where(SessionRow.job_id == JobRow.id, SessionRow.state.not_in(FINAL_SESSIONS)),
        ),
    ),
    # What happened is told once, in order.
    (
        "Jobs have lost events",
        select(JobRow.id)
        .outerjoin(EventRow, EventRow.job_id == JobRow.id)
        .group_by(JobRow.id, JobRow.events)
        .having((func.count(EventRow.seq) != JobRow.events) | (func.max(EventRow.seq) != JobRow.events)),
    ),
)
