"""The tables. What may be live only once is a partial unique index, so that no program error can break it."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import JobSpec, JobState
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.runs import ProductionRun
from advisor.protocol.measured.telemetry import NodeFlag, NodeTelemetry, TelemetrySample
from advisor.protocol.measured.trials import (
    BlockPlan,
    BlockSummary,
    EarlierJob,
    EarlierLaunches,
    SessionState,
)
from advisor.protocol.nodes.cluster import Cluster, Node
from advisor.protocol.standing import Standing
from advisor.protocol.training.workload import WorkloadFacts
from advisor.protocol.views import EventFacts
from advisor.storage.columns import NAMES, Document, Moment, Words

FINAL_JOBS = [state for state in JobState if state.is_final]
LIVE_SESSIONS = [state for state in SessionState if not state.is_final]
FINAL_SESSIONS = [state for state in SessionState if state.is_final]


_Changes = Document(Changes)
_Moments = Document(tuple[datetime, ...])
_WHERE = ("sqlite_where", "postgresql_where")
_LIVE: dict[str, Any] = dict.fromkeys(_WHERE, text(f"state IN {tuple(map(str, LIVE_SESSIONS))}"))
_HELD: dict[str, Any] = dict.fromkeys(_WHERE, text("live"))
_ISSUED: dict[str, Any] = dict.fromkeys(_WHERE, text("state = 'issued' AND arm = 0"))
VERSION_TABLE = "advisor_alembic_version"
"""Holds the newest migration of a database. Optuna's use the default name, and may share the database."""
_Launches = tuple[EarlierLaunches, ...]
_Serial = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """All tables."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map: ClassVar = {str: Words, datetime: Moment}


class JobRow(Base):
    """A tuning job, with the counters that number what belongs to it."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(
            "state IN ('queued', 'running', 'paused', 'cancelling', 'finished', 'failed', 'cancelled')",
            name="state",
        ),
        Index("ix_jobs_state", "state"),
        Index("ix_jobs_owner", "owner"),
        Index("ix_jobs_name", "name"),
    )

    serial: Mapped[int] = mapped_column(_Serial, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(unique=True)
    spec: Mapped[JobSpec] = mapped_column(Document(JobSpec))
    name: Mapped[str] = mapped_column(server_default="")
    """The specification's, to find it by."""
    state: Mapped[str]
    stage: Mapped[str]
    state_reason: Mapped[str] = mapped_column(default="")
    owner: Mapped[str] = mapped_column(default="")
    team: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    continued_at: Mapped[tuple[datetime, ...]] = mapped_column(_Moments, server_default="[]")
    archived_at: Mapped[datetime | None]
    facts: Mapped[WorkloadFacts | None] = mapped_column(Document(WorkloadFacts))
    cluster: Mapped[Cluster] = mapped_column(Document(Cluster))
    baseline: Mapped[dict[str, Value]] = mapped_column(Document(dict[str, Value]))
    refusals: Mapped[dict[str, str]] = mapped_column(Document(dict[str, str]))
    standing: Mapped[Standing | None] = mapped_column(Document(Standing))
    version: Mapped[int] = mapped_column(default=0)
    generation: Mapped[int] = mapped_column(default=0)
    """Generation of its latest session."""
    events: Mapped[int] = mapped_column(default=0)
    """Number of its latest event."""
    chunks: Mapped[int] = mapped_column(default=0)
    log_chars: Mapped[int] = mapped_column(default=0)
    earlier: Mapped[tuple[EarlierJob, ...] | None] = mapped_column(Document(tuple[EarlierJob, ...]))
    earlier_launches: Mapped[_Launches | None] = mapped_column(Document(_Launches))
    """Strategies of similar earlier jobs and launches on the same nodes, chosen once; NULL before that."""


class LabelRow(Base):
    """A label of a job, to find it by."""

    __tablename__ = "labels"
    __table_args__ = (Index("ix_labels_key_value", "key", "value"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class AgentRow(Base):
    """An agent and the node it runs on."""

    __tablename__ = "agents"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    node: Mapped[Node] = mapped_column(Document(Node))
    registered_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
    flag: Mapped[NodeFlag | None] = mapped_column(Document(NodeFlag))
    secret_sha256: Mapped[str | None]
    """Of the secret that the agent made itself; NULL once an administrator has readmitted its name."""
    revoked_at: Mapped[datetime | None]
    """Since when the agent is turned out."""
    drained_because: Mapped[str | None]
    """Why it takes no further session; NULL while it does."""
    ends_at: Mapped[datetime | None]
    """When its allocation ends and the agent with it; NULL: no end is known."""
    removed_at: Mapped[datetime | None]
    """Since when it is removed: the row stays for what was measured with it, and for who registers under its name."""


class TokenRow(Base):
    """A token: only the SHA-256 of its secret is known here."""

    __tablename__ = "tokens"
    __table_args__ = (CheckConstraint("role IN ('viewer', 'submitter', 'admin', 'agent')", name="role"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]
    label: Mapped[str] = mapped_column(default="")
    secret_sha256: Mapped[str]
    agent_id: Mapped[str | None] = mapped_column(ForeignKey("agents.id"), index=True)
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    uses_left: Mapped[int | None]
    """How many more agents may register with it; NULL is any number."""
    team: Mapped[str] = mapped_column(server_default="")
    last_used_at: Mapped[datetime | None]
    """When a request last carried it, to within some minutes; NULL: never, or an agent's own."""


class SessionRow(Base):
    """One launch; `generation` fences every write that concerns it."""

    __tablename__ = "sessions"
    __table_args__ = (
        UniqueConstraint("job_id", "generation"),
        CheckConstraint("state IN ('assembling', 'running', 'ending', 'ended', 'lost')", name="state"),
        Index("uq_sessions_live_job", "job_id", unique=True, **_LIVE),
        Index("ix_sessions_live", "state", **_LIVE),
        Index("ix_sessions_ended_at", "ended_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    generation: Mapped[int]
    state: Mapped[str]
    because: Mapped[str] = mapped_column(default="")
    cold: Mapped[Changes] = mapped_column(_Changes)
    rendezvous: Mapped[str | None]
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(default="")
    log_tail: Mapped[str] = mapped_column(default="")
    trouble_code: Mapped[str | None]
    trouble_fatal: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    total_steps: Mapped[int] = mapped_column(default=0)
    limit_s: Mapped[float | None]
    """Seconds that it may last from its start on, by its job's budget."""
    facts: Mapped[WorkloadFacts | None] = mapped_column(Document(WorkloadFacts))
    """What the runtime saw in a launch with cold changes; the script's own stand in its job's row."""


class MemberRow(Base):
    """An agent's place in a gang; the lease is each member's own."""

    __tablename__ = "members"
    __table_args__ = (
        UniqueConstraint("session_id", "node_rank"),
        CheckConstraint("state IN ('preparing', 'ready', 'running', 'gone')", name="state"),
        Index("uq_members_live_agent", "agent_id", unique=True, **_HELD),
    )

    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    agent_id: Mapped[str] = mapped_column(ForeignKey("agents.id"), primary_key=True)
    node_rank: Mapped[int]
    state: Mapped[str]
    live: Mapped[bool]
    """Whether the agent still belongs to the gang; false as soon as the session is over."""
    news: Mapped[int] = mapped_column(server_default="0")
    """Number of the latest news (log lines, telemetry) that were kept; 0: none yet."""
    heard_at: Mapped[datetime | None]
    """When the agent was last heard of from its place, which tells what a session cost; NULL while it has the place,
    and where that is when it was last heard of at all."""
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(default="")
    log_tail: Mapped[str] = mapped_column(default="")
    total_steps: Mapped[int] = mapped_column(default=0)
    samples: Mapped[int] = mapped_column(default=0)
    """Telemetry samples that came; of many, only some are kept."""


class EpochRow(Base):
    """One row that counts servers' starts. It is a key, so that changing it waits for transactions that hold it."""

    __tablename__ = "epoch"

    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class TrialRow(Base):
    """One strategy."""

    __tablename__ = "trials"
    __table_args__ = (CheckConstraint("state IN ('open', 'closed')", name="state"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    purpose: Mapped[str]
    changes: Mapped[Changes] = mapped_column(_Changes)
    effect: Mapped[str]
    because: Mapped[str]
    state: Mapped[str]
    outcome: Mapped[str | None]
    outcome_reason: Mapped[str] = mapped_column(default="")
    log_tail: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    asked_again_at: Mapped[datetime | None]


class BlockRow(Base):
    """A stretch of timed steps: what was asked and its summary. The result itself is in `results`."""

    __tablename__ = "blocks"
    __table_args__ = (
        UniqueConstraint("session_id", "ordinal"),
        CheckConstraint("state IN ('issued', 'done', 'void')", name="state"),
        Index("uq_blocks_issued_session", "session_id", unique=True, **_ISSUED),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    trial_number: Mapped[int]
    ordinal: Mapped[int]
    race: Mapped[int]
    arm: Mapped[int] = mapped_column(server_default="0")
    state: Mapped[str]
    plan: Mapped[BlockPlan] = mapped_column(Document(BlockPlan))
    summary: Mapped[BlockSummary | None] = mapped_column(Document(BlockSummary))
    note: Mapped[str] = mapped_column(default="")
    issued_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    utilisation: Mapped[float | None]
    telemetry: Mapped[tuple[NodeTelemetry, ...]] = mapped_column(
        Document(tuple[NodeTelemetry, ...]), server_default="[]"
    )


class ResultRow(Base):
    """An accepted result: the primary key accepts one per block, for ever."""

    __tablename__ = "results"

    block_id: Mapped[str] = mapped_column(ForeignKey("blocks.id"), primary_key=True)
    generation: Mapped[int]
    payload_sha256: Mapped[str]
    body: Mapped[BlockResult] = mapped_column(Document(BlockResult))
    accepted_at: Mapped[datetime]


class QuarantineRow(Base):
    """A result that was not accepted: kept for people, never counted."""

    __tablename__ = "quarantine"

    session_id: Mapped[str] = mapped_column(primary_key=True)
    block_id: Mapped[str] = mapped_column(primary_key=True)
    payload_sha256: Mapped[str] = mapped_column(primary_key=True)
    agent_id: Mapped[str]
    generation: Mapped[int]
    """The generation that the report named."""
    why: Mapped[str]
    body: Mapped[BlockResult] = mapped_column(Document(BlockResult))
    received_at: Mapped[datetime]


class EventRow(Base):
    """One transition of a job, as a sentence."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    kind: Mapped[str]
    sentence: Mapped[str]
    trial_number: Mapped[int | None]
    session_id: Mapped[str | None]
    facts: Mapped[EventFacts | None] = mapped_column(Document(EventFacts))


class LogRow(Base):
    """A chunk of a session's log."""

    __tablename__ = "log_chunks"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    session_id: Mapped[str]
    agent: Mapped[str]
    text: Mapped[str]


class TelemetryRow(Base):
    """One sample of one node, placed in its session's time."""

    __tablename__ = "telemetry"

    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    agent_id: Mapped[str] = mapped_column(ForeignKey("agents.id"), primary_key=True)
    ordinal: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    offset_s: Mapped[float]
    sample: Mapped[TelemetrySample] = mapped_column(Document(TelemetrySample))


class AdviceRow(Base):
    """The answer to a job, built once."""

    __tablename__ = "advice"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    body: Mapped[Advice] = mapped_column(Document(Advice))
    built_at: Mapped[datetime]


class RunRow(Base):
    """A real training under the advised strategy, as it last reported."""

    __tablename__ = "runs"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    reported_at: Mapped[datetime]
    body: Mapped[ProductionRun] = mapped_column(Document(ProductionRun))


class IdempotencyRow(Base):
    """A key that a client submitted a job with, each token having keys of its own."""

    __tablename__ = "idempotency_keys"

    token_id: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_sha256: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[datetime]
