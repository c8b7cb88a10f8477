"""What accompanies a job: its events, its logs and telemetry (both bounded), its advice, and trainings under it."""

from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from advisor.protocol.answers.advice import Advice
from advisor.protocol.measured.runs import ProductionRun
from advisor.protocol.measured.telemetry import TelemetryPoint, TelemetrySample
from advisor.protocol.views import EventFacts, EventKind, JobEvent, LogChunk
from advisor.storage.notifier import story_of
from advisor.storage.tables import (
    AdviceRow,
    AgentRow,
    EventRow,
    JobRow,
    LogRow,
    MemberRow,
    RunRow,
    TelemetryRow,
)

MAX_LOG_CHARS = 8 * 2**20
"""Characters of log kept per job; the oldest chunks go first."""
MAX_SAMPLES = 10_000
"""Telemetry samples kept per agent and session; beyond that every second one goes, and again every second one."""

_LONGEST_SENTENCE = 4000
"""Characters of an event's; what agents report may go on and on."""


class Events:
    """The story of jobs."""

    def __init__(self, connection: Connection, rung: set[str]) -> None:
        """`rung` collects what is rung for at the commit, to wake those who follow a job's story."""
        self._connection = connection
        self._rung = rung

    def append(
        self,
        job_id: str,
        kind: EventKind,
        sentence: str,
        now: datetime,
        *,
        trial_number: int | None = None,
        session_id: str | None = None,
        facts: EventFacts | None = None,
    ) -> None:
        """Add an event, and let the job's version grow: every transition comes with one."""
        # The counter is on the job, so that numbers become visible in order (a sequence would not promise that).
        number = self._connection.execute(_COUNT_EVENT, {"job": job_id}).scalar_one()
        event = {
            "job_id": job_id,
            "seq": number,
            "at": now,
            "kind": kind,
            "sentence": sentence[:_LONGEST_SENTENCE],
            "trial_number": trial_number,
            "session_id": session_id,
            "facts": facts,
        }
        self._connection.execute(_ADD_EVENT, event)
        self._rung.add(story_of(job_id))

    def facts_of(self, job_id: str) -> list[EventFacts]:
        """Return what a job's events tell as data, in order."""
        query = (
            select(EventRow.facts)
            .where(EventRow.job_id == job_id, EventRow.facts.is_not(None))
            .order_by(EventRow.seq)
        )
        return [facts for facts in self._connection.execute(query).scalars() if facts is not None]

    def newest(self, job_id: str) -> int | None:
        """Return the number of a job's last event, None where there is no such job."""
        return self._connection.execute(select(JobRow.events).where(JobRow.id == job_id)).scalar_one_or_none()

    def after(self, job_id: str, after: int, limit: int) -> list[JobEvent]:
        """Return a job's events with numbers above `after`, in order."""
        query = (
            select(EventRow)
            .where(EventRow.job_id == job_id, EventRow.seq > after)
            .order_by(EventRow.seq)
            .limit(limit)
        )
        return [
            JobEvent(**{name: getattr(row, name) for name in JobEvent.model_fields})
            for row in self._connection.execute(query)
        ]


class Logs:
    """What training processes wrote."""

    def __init__(self, connection: Connection, max_chars: int = MAX_LOG_CHARS) -> None:
        self._connection = connection
        self._max_chars = max_chars

    def append(self, job_id: str, session_id: str, agent: str, text: str) -> None:
        """Add a chunk; where the job has too much log, drop its oldest chunks."""
        row = self._connection.execute(
            update(JobRow)
            .where(JobRow.id == job_id)
            .values(chunks=JobRow.chunks + 1, log_chars=JobRow.log_chars + len(text))
            .returning(JobRow.chunks, JobRow.log_chars)
        ).one()
        self._connection.execute(
            insert(LogRow).values(
                job_id=job_id, seq=row.chunks, session_id=session_id, agent=agent, text=text
            )
        )
        if row.log_chars > self._max_chars:
            self._drop_oldest(job_id, row.log_chars)

    def after(self, job_id: str, after: int, limit: int) -> list[LogChunk]:
        """Return a job's chunks with numbers above `after`, in order."""
        query = (
            select(LogRow)
            .where(LogRow.job_id == job_id, LogRow.seq > after)
            .order_by(LogRow.seq)
            .limit(limit)
        )
        return [
            LogChunk(**{name: getattr(row, name) for name in LogChunk.model_fields})
            for row in self._connection.execute(query)
        ]

    def _drop_oldest(self, job_id: str, chars: int) -> None:
        # Down to three quarters, so that this happens once in a while and not with every line.
        sizes = self._connection.execute(
            select(LogRow.seq, func.length(LogRow.text).label("chars"))
            .where(LogRow.job_id == job_id)
            .order_by(LogRow.seq)
        )
        last = 0
        for row in sizes.all()[:-1]:
            if chars <= self._max_chars * 3 // 4:
                break
            chars, last = chars - row.chars, row.seq
        self._connection.execute(delete(LogRow).where(LogRow.job_id == job_id, LogRow.seq <= last))
        self._connection.execute(update(JobRow).where(JobRow.id == job_id).values(log_chars=chars))


class Telemetry:
    """Samples of nodes, placed in their session's time."""

    def __init__(self, connection: Connection, max_samples: int = MAX_SAMPLES) -> None:
        self._connection = connection
        self._max_samples = max_samples

    def add(self, session_id: str, agent_id: str, points: list[tuple[float, TelemetrySample]]) -> int:
        """Store samples with their offsets in seconds, thinned so that the whole session has room; return how many."""
        mine = {"session": session_id, "agent": agent_id, "more": len(points)}
        total = self._connection.execute(_COUNT_SAMPLES, mine).scalar_one()
        came = total - len(points)
        stride = self._stride(total)
        if stride > self._stride(came):
            self._connection.execute(
                delete(TelemetryRow).where(
                    TelemetryRow.session_id == session_id,
                    TelemetryRow.agent_id == agent_id,
                    TelemetryRow.ordinal % stride != 0,
                )
            )
        kept = [
            {
                "session_id": session_id,
                "agent_id": agent_id,
                "ordinal": ordinal,
                "offset_s": offset_s,
                "sample": sample,
            }
            for ordinal, (offset_s, sample) in enumerate(points, came)
            if ordinal % stride == 0
        ]
        if kept:
            self._connection.execute(_ADD_SAMPLES, kept)
        return len(kept)

    def between(self, session_id: str, start_s: float, end_s: float) -> list[TelemetryPoint]:
        """Return a session's samples within a window of its time, in seconds."""
        window = {"session": session_id, "start": start_s, "end": end_s}
        return [
            TelemetryPoint(agent=row.name, offset_s=row.offset_s, sample=row.sample)
            for row in self._connection.execute(_BETWEEN, window)
        ]

    def of_session(self, session_id: str, limit: int) -> list[TelemetryPoint]:
        """Return at most `limit` samples of a session, evenly thinned out."""
        mine = TelemetryRow.session_id == session_id
        held, last = self._connection.execute(
            select(func.count(), func.max(TelemetryRow.ordinal)).where(mine)
        ).one()
        if not held:
            return []
        # Agents keep every n-th sample, n being a power of two: a multiple of it thins them evenly.
        stride = self._stride(last + 1) * max(1, -(-held // limit))
        query = _POINTS.where(mine, TelemetryRow.ordinal % stride == 0).limit(limit)
        return [
            TelemetryPoint(agent=row.name, offset_s=row.offset_s, sample=row.sample)
            for row in self._connection.execute(query)
        ]

    def _stride(self, total: int) -> int:
        """The smallest power of two so that every stride-th of `total` samples has room."""
        stride = 1
        while -(-total // stride) > self._max_samples:
            stride *= 2
        return stride


class Advices:
    """The advice of finished jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, advice: Advice, now: datetime) -> None:
        """Keep a job's advice, in place of the one from before it was continued."""
        self._connection.execute(delete(AdviceRow).where(AdviceRow.job_id == advice.job_id))
        self._connection.execute(insert(AdviceRow).values(job_id=advice.job_id, body=advice, built_at=now))

    def get(self, job_id: str) -> Advice | None:
        """Return a job's advice."""
        query = select(AdviceRow.body).where(AdviceRow.job_id == job_id)
        advice: Advice | None = self._connection.execute(query).scalar_one_or_none()
        return advice


_POINTS = (
    select(TelemetryRow.offset_s, TelemetryRow.sample, AgentRow.name)
    .join(AgentRow, AgentRow.id == TelemetryRow.agent_id)
    .order_by(TelemetryRow.offset_s, AgentRow.name)
)
# Every beat or report runs these: putting a statement together takes several times as long as running it.
_BETWEEN = _POINTS.where(
    TelemetryRow.session_id == bindparam("session"),
    TelemetryRow.offset_s.between(bindparam("start"), bindparam("end")),
)
_COUNT_SAMPLES = (
    update(MemberRow)
    .where(MemberRow.session_id == bindparam("session"), MemberRow.agent_id == bindparam("agent"))
    .values(samples=MemberRow.samples + bindparam("more", type_=MemberRow.samples.type))
    .returning(MemberRow.samples)
)
_ADD_SAMPLES = insert(TelemetryRow)
_COUNT_EVENT = (
    update(JobRow)
    .where(JobRow.id == bindparam("job"))
    .values(events=JobRow.events + 1, version=JobRow.version + 1)
    .returning(JobRow.events)
)
_ADD_EVENT = insert(EventRow)


class Runs:
    """The trainings of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, job_id: str, run_id: str) -> ProductionRun | None:
        """Return a training."""
        query = select(RunRow.body).where(RunRow.job_id == job_id, RunRow.id == run_id)
        return self._connection.execute(query).scalar_one_or_none()

    def put(self, job_id: str, run: ProductionRun) -> None:
        """Store a training in the place of what was known of it."""
        values = {"reported_at": run.reported_at, "body": run}
        changed = self._connection.execute(
            update(RunRow).where(RunRow.job_id == job_id, RunRow.id == run.id).values(**values)
        )
        if not changed.rowcount:
            self._connection.execute(insert(RunRow).values(job_id=job_id, id=run.id, **values))

    def of_job(self, job_id: str) -> list[ProductionRun]:
        """Return the trainings of a job, the latest report first."""
        query = (
            select(RunRow.body).where(RunRow.job_id == job_id).order_by(RunRow.reported_at.desc(), RunRow.id)
        )
        return list(self._connection.execute(query).scalars())

    def prune(self, job_id: str, most: int) -> None:
        """Keep the `most` trainings of a job that reported last."""
        kept = (
            select(RunRow.id)
            .where(RunRow.job_id == job_id)
            .order_by(RunRow.reported_at.desc(), RunRow.id)
            .limit(most)
        )
        self._connection.execute(delete(RunRow).where(RunRow.job_id == job_id, RunRow.id.not_in(kept)))
