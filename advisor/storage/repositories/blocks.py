"""Blocks, the results accepted for them exactly once, and the quarantine for all others."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import (
    Connection,
    Text,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.orm import aliased

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.telemetry import NodeTelemetry
from advisor.protocol.measured.trials import Block, BlockState, BlockSummary, SessionState
from advisor.storage.columns import AnyRow
from advisor.storage.page_sizes import Part, count_fitting
from advisor.storage.repositories.known_blocks import KnownBlocks, Mark
from advisor.storage.tables import BlockRow, QuarantineRow, ResultRow, SessionRow

MAX_QUARANTINE_CHARS = 4 * 2**20
"""Characters of results in quarantine that are kept per agent."""
MAX_QUARANTINED = 200
"""Results in quarantine that are kept per agent."""
_MOST_ORDINALS = 2**31
"""No session has as many blocks: a generation times this, plus a place in it, is one number for both."""
_ACCEPTING = [SessionState.RUNNING, SessionState.ENDING]


class Blocks:
    """The blocks of one transaction."""

    def __init__(
        self,
        connection: Connection,
        known: KnownBlocks,
        read_only: bool = False,
        max_chars: int = MAX_QUARANTINE_CHARS,
    ) -> None:
        """`known` are blocks read before; only a transaction that reads adds to them: what it sees is committed."""
        self._connection, self._known, self._read_only = connection, known, read_only
        self._max_chars = max_chars

    def issue(self, job_id: str, block: Block) -> None:
        """Store a new block; a unique index refuses the first arm of a second race of the same session."""
        stored = set(Block.model_fields) - {"result"}
        values = {name: getattr(block, name) for name in stored}
        self._connection.execute(_ISSUE, values | {"job_id": job_id})

    def next_ordinal(self, session_id: str) -> int:
        """Return the place of the session's next block: from 0."""
        return self._connection.execute(_COUNT, {"session": session_id}).scalar_one()

    def get(self, block_id: str) -> Block | None:
        """Return a block."""
        row = self._connection.execute(_GET, {"block": block_id}).one_or_none()
        return _block(row) if row else None

    def issued_in(self, session_id: str) -> tuple[Block, ...]:
        """Return the blocks that are being measured in a session: the arms of its race, in their order."""
        return tuple(_block(row) for row in self._connection.execute(_ISSUED_IN, {"session": session_id}))

    def arms_of(self, race_id: str) -> tuple[Block, ...]:
        """Return the blocks of the race whose first arm has this id, in the order of the arms; empty for none."""
        return tuple(_block(row) for row in self._connection.execute(_ARMS, {"block": race_id}))

    def of_job(self, job_id: str) -> tuple[Block, ...]:
        """Return all blocks of a job in the order they were issued."""
        marks = {row.id: _mark(row) for row in self._connection.execute(_MARKS_OF_JOB, {"job": job_id})}
        blocks = self._known.find(marks)
        missing = [block_id for block_id in marks if block_id not in blocks]
        for start in range(0, len(missing), _AT_ONCE):
            for row in self._connection.execute(_THESE, {"blocks": missing[start : start + _AT_ONCE]}):
                block = blocks[row.id] = _block(row)
                if self._read_only and block.state is not BlockState.ISSUED:
                    self._known.keep(block, _mark(row))
        return tuple(blocks[block_id] for block_id in marks if block_id in blocks)

    def page(self, job_id: str, limit: int, after: int | None) -> Part[tuple[int, Block]]:
        """Return blocks of a job in the same order, each with a number that grows; those above `after`."""
        query = (
            _QUERY.join(SessionRow, SessionRow.id == BlockRow.session_id)
            .add_columns(SessionRow.generation.label("launch"))
            .where(BlockRow.job_id == job_id)
            .order_by(SessionRow.generation, BlockRow.ordinal)
        )
        if after is not None:
            generation, ordinal = divmod(after, _MOST_ORDINALS)
            same = (SessionRow.generation == generation) & (BlockRow.ordinal > ordinal)
            query = query.where((SessionRow.generation > generation) | same)
        most = count_fitting(self._connection, query, limit, BlockRow, ResultRow)
        rows = self._connection.execute(query.limit(most + 1))
        return Part([(row.launch * _MOST_ORDINALS + row.ordinal, _block(row)) for row in rows], most)

    def finished_since(self, session_id: str, since: datetime) -> tuple[Block, ...]:
        """Return the measured blocks of a session that ended after `since`."""
        window = {"session": session_id, "since": since}
        return tuple(_block(row) for row in self._connection.execute(_FINISHED_SINCE, window))

    def ended_since(self, session_id: str, since: datetime) -> tuple[Block, ...]:
        """Return the same blocks without their results, which are most of what there is to read."""
        window = {"session": session_id, "since": since}
        return tuple(_block(row) for row in self._connection.execute(_ENDED_SINCE, window))

    def accept(
        self,
        block: Block,
        generation: int,
        result: BlockResult,
        summary: BlockSummary | None,
        payload_sha256: str,
        now: datetime,
    ) -> bool:
        """Accept a result, if the block is still being measured under this very generation."""
        measured = {
            "block": block.id,
            "session": block.session_id,
            "of_generation": generation,
            "now_summary": summary,
            "now": now,
        }
        if self._connection.execute(_FINISH, measured).rowcount != 1:
            return False
        accepted = {
            "block_id": block.id,
            "generation": generation,
            "payload_sha256": payload_sha256,
            "body": result,
            "accepted_at": now,
        }
        self._connection.execute(_ADD_RESULT, accepted)
        return True

    def accepted_sha256(self, block_id: str) -> str | None:
        """Return the hash of the result that was accepted for a block."""
        return self._connection.execute(_SHA256, {"block": block_id}).scalar_one_or_none()

    def quarantine(
        self,
        session_id: str,
        block_id: str,
        agent_id: str,
        generation: int,
        result: BlockResult,
        payload_sha256: str,
        why: str,
        now: datetime,
    ) -> None:
        """Keep a result that is not accepted; the same one is kept once. An agent's oldest make room for its latest."""
        same = (
            QuarantineRow.session_id == session_id,
            QuarantineRow.block_id == block_id,
            QuarantineRow.payload_sha256 == payload_sha256,
        )
        if self._connection.execute(select(exists().where(*same))).scalar_one():
            return
        self._connection.execute(
            insert(QuarantineRow).values(
                session_id=session_id,
                block_id=block_id,
                payload_sha256=payload_sha256,
                agent_id=agent_id,
                generation=generation,
                why=why,
                body=result,
                received_at=now,
            )
        )
        self._make_room(agent_id)

    def _make_room(self, agent_id: str) -> None:
        keys = (QuarantineRow.session_id, QuarantineRow.block_id, QuarantineRow.payload_sha256)
        held = self._connection.execute(
            select(*keys, func.length(QuarantineRow.body).label("chars"))
            .where(QuarantineRow.agent_id == agent_id)
            .order_by(QuarantineRow.received_at.desc(), *keys)
        ).all()
        chars = 0
        for count, row in enumerate(held, 1):
            chars += row.chars
            if count > 1 and (count > MAX_QUARANTINED or chars > self._max_chars):
                this = [column == value for column, value in zip(keys, row[:3], strict=True)]
                self._connection.execute(delete(QuarantineRow).where(*this))

    def quarantined(self, block_id: str) -> list[str]:
        """Return why results for a block were not accepted."""
        query = select(QuarantineRow.why).where(QuarantineRow.block_id == block_id)
        return list(self._connection.execute(query.order_by(QuarantineRow.received_at)).scalars())

    def void(self, block_id: str, note: str, now: datetime) -> bool:
        """Give up a block that is being measured."""
        query = (
            update(BlockRow)
            .where(BlockRow.id == block_id, BlockRow.state == BlockState.ISSUED)
            .values(state=BlockState.VOID, note=note, finished_at=now)
        )
        return self._connection.execute(query).rowcount == 1

    def void_all(self, session_id: str, note: str, now: datetime) -> None:
        """Give up whatever is being measured in a session, readable or not."""
        query = update(BlockRow).where(BlockRow.session_id == session_id, BlockRow.state == BlockState.ISSUED)
        self._connection.execute(query.values(state=BlockState.VOID, note=note, finished_at=now))

    def set_telemetry(
        self, block_ids: Sequence[str], utilisation: float | None, nodes: tuple[NodeTelemetry, ...]
    ) -> None:
        """Set what telemetry showed during blocks: the mean utilisation, 0 to 1, and each node's summary."""
        seen = {"blocks": block_ids, "now_utilisation": utilisation, "now_telemetry": nodes}
        self._connection.execute(_SET_TELEMETRY, seen)


_AT_ONCE = 500
"""Blocks that are asked for in one statement."""
_MARK = (
    BlockRow.state,
    BlockRow.note,
    BlockRow.finished_at,
    BlockRow.utilisation,
    type_coerce(BlockRow.telemetry, Text).label("telemetry_text"),
)
_QUERY = select(BlockRow, _MARK[-1], ResultRow.body.label("result")).outerjoin(
    ResultRow, ResultRow.block_id == BlockRow.id
)


# Every beat, report or question for more runs these: putting a statement together takes several times as long as
# running it.
_GET = _QUERY.where(BlockRow.id == bindparam("block"))
_THESE = _QUERY.where(BlockRow.id.in_(bindparam("blocks", expanding=True)))
_MARKS_OF_JOB = (
    select(BlockRow.id, *_MARK)
    .join(SessionRow, SessionRow.id == BlockRow.session_id)
    .where(BlockRow.job_id == bindparam("job"))
    .order_by(SessionRow.generation, BlockRow.ordinal)
)
_ISSUE = insert(BlockRow)
_COUNT = select(func.count()).select_from(BlockRow).where(BlockRow.session_id == bindparam("session"))
_ISSUED_IN = _QUERY.where(
    BlockRow.session_id == bindparam("session"), BlockRow.state == BlockState.ISSUED
).order_by(BlockRow.arm)
_First = aliased(BlockRow)
_ARMS = (
    _QUERY.join(
        _First,
        (BlockRow.session_id == _First.session_id)
        & (
            (BlockRow.id == _First.id)
            | (BlockRow.race == _First.race) & (BlockRow.issued_at == _First.issued_at)
        ),
    )
    .where(_First.id == bindparam("block"), _First.arm == 0)
    .order_by(BlockRow.arm)
)
_ENDED = (
    BlockRow.session_id == bindparam("session"),
    BlockRow.state == BlockState.DONE,
    BlockRow.finished_at >= bindparam("since"),
)
_FINISHED_SINCE = _QUERY.where(*_ENDED)
_ENDED_SINCE = select(BlockRow, literal(None).label("result")).where(*_ENDED)
_FINISH = (
    update(BlockRow)
    .where(
        BlockRow.id == bindparam("block"),
        BlockRow.state == BlockState.ISSUED,
        exists().where(
            SessionRow.id == bindparam("session"),
            SessionRow.generation == bindparam("of_generation"),
            or_(*(SessionRow.state == state for state in _ACCEPTING)),
        ),
    )
    .values(state=BlockState.DONE, summary=bindparam("now_summary"), finished_at=bindparam("now"))
)
_ADD_RESULT = insert(ResultRow)
_SHA256 = select(ResultRow.payload_sha256).where(ResultRow.block_id == bindparam("block"))
_SET_TELEMETRY = (
    update(BlockRow)
    .where(BlockRow.id.in_(bindparam("blocks", expanding=True)))
    .values(utilisation=bindparam("now_utilisation"), telemetry=bindparam("now_telemetry"))
)


def _mark(row: AnyRow) -> Mark:
    return Mark(row.state, row.note, row.finished_at, row.utilisation, row.telemetry_text)


def _block(row: AnyRow) -> Block:
    return Block.model_construct(
        **{name: getattr(row, name) for name in Block.model_fields} | {"state": BlockState(row.state)}
    )
