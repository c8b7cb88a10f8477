"""Jobs: their guarded transitions, and the keys they were submitted with."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute

from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job, JobSpec, JobState, Stage
from advisor.protocol.base import Value
from advisor.protocol.measured.trials import EarlierJob, EarlierLaunches
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.standing import Standing
from advisor.protocol.training.workload import WorkloadFacts
from advisor.protocol.views import JobQuery
from advisor.storage.columns import AnyRow, read_each
from advisor.storage.page_sizes import Part, count_fitting
from advisor.storage.tables import (
    FINAL_JOBS,
    LIVE_SESSIONS,
    AdviceRow,
    Base,
    BlockRow,
    IdempotencyRow,
    JobRow,
    LabelRow,
    SessionRow,
)


class Jobs:
    """The jobs of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, job: Job) -> None:
        """Store a new job."""
        values = {name: getattr(job, name) for name in Job.model_fields}
        self._connection.execute(insert(JobRow).values(values | {"name": job.spec.name}))
        for key, value in job.spec.labels.items():
            self._connection.execute(insert(LabelRow).values(job_id=job.id, key=key, value=value))

    def get(self, job_id: str) -> Job | None:
        """Return a job."""
        row = self._connection.execute(_GET, {"job": job_id}).one_or_none()
        return _job(row) if row else None

    def version(self, job_id: str) -> int | None:
        """Return the version of a job, readable or not."""
        return self._connection.execute(_VERSION, {"job": job_id}).scalar_one_or_none()

    def lock(self, job_id: str) -> Job | None:
        """Return a job and keep every other transaction that concerns it waiting until this one ends."""
        query = select(JobRow).where(JobRow.id == job_id).with_for_update()
        row = self._connection.execute(query).one_or_none()
        return _job(row) if row else None

    def hold(self, job_id: str) -> bool:
        """Keep other transactions waiting as `lock` does, also for a job that cannot be read; return whether it is."""
        query = select(JobRow.id).where(JobRow.id == job_id).with_for_update()
        return self._connection.execute(query).first() is not None

    def lock_of(self, session_id: str) -> None:
        """Keep every other transaction that concerns a session's job waiting until this one ends."""
        # A transaction that writes to SQLite is alone with it.
        if self._connection.dialect.name != "sqlite":
            self._connection.execute(_LOCK_OF, {"session": session_id}).all()

    def page(self, wanted: JobQuery, limit: int, before: int | None) -> Part[tuple[int, Job]]:
        """Return jobs that `wanted` names with their serial numbers, newest first, those below `before`."""
        query = select(JobRow).where(*_conditions(wanted)).order_by(JobRow.serial.desc())
        if before is not None:
            query = query.where(JobRow.serial < before)
        most = count_fitting(self._connection, query, limit, JobRow)
        found = read_each(self._connection, query, JobRow.id, lambda row: (row.serial, _job(row)), most + 1)
        return Part(found, most)

    def without_session(self) -> list[Job]:
        """Return the queued and running jobs that hold no session, the oldest first."""
        return read_each(self._connection, _WITHOUT_SESSION, JobRow.id, _job)

    def start(self, job_id: str, cluster: Cluster, now: datetime) -> int | None:
        """Make the job running on the nodes of its gang; return its next generation, None when it may not run."""
        query = (
            update(JobRow)
            .where(JobRow.id == job_id, JobRow.state.in_([JobState.QUEUED, JobState.RUNNING]))
            .values(
                state=JobState.RUNNING,
                state_reason="",
                generation=JobRow.generation + 1,
                started_at=case((JobRow.started_at.is_(None), now), else_=JobRow.started_at),
                cluster=cluster,
            )
            .returning(JobRow.generation)
        )
        return self._connection.execute(query).scalar_one_or_none()

    def move(
        self,
        job_id: str,
        to: JobState,
        reason: str,
        *,
        since: tuple[JobState, ...],
        now: datetime,
        stage: Stage | None = None,
    ) -> bool:
        """Put the job into state `to` if it is in one of `since`; return whether it was."""
        changes: dict[str, Any] = {"state": to, "state_reason": reason}
        if to.is_final:
            changes["finished_at"] = now
        if stage is not None:
            changes["stage"] = stage
        query = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(since)).values(changes)
        return self._connection.execute(query).rowcount == 1

    def reopen(self, job: Job, reason: str, now: datetime) -> bool:
        """Queue a job that had ended once more, with the specification of `job`; return whether it had ended.

        What it measured, and its advice until there is a new one, stays.
        """
        query = (
            update(JobRow)
            .where(JobRow.id == job.id, JobRow.state.in_(FINAL_JOBS))
            .values(
                spec=job.spec,
                state=JobState.QUEUED,
                stage=Stage.PROBE,
                state_reason=reason,
                finished_at=None,
                archived_at=None,
                continued_at=(*job.continued_at, now),
            )
        )
        return self._connection.execute(query).rowcount == 1

    def respecify(self, job_id: str, spec: JobSpec) -> None:
        """Give the job this specification; its name and labels have to be those that it had."""
        self._connection.execute(update(JobRow).where(JobRow.id == job_id).values(spec=spec))

    def archive(self, job_id: str, since: datetime | None) -> None:
        """Leave the job out of lists since then; None takes it back into them."""
        self._connection.execute(update(JobRow).where(JobRow.id == job_id).values(archived_at=since))

    def delete(self, job_id: str) -> None:
        """Delete the job and every row that belongs to it, to one of its sessions or to one of its blocks."""
        sessions = select(SessionRow.id).where(SessionRow.job_id == job_id)
        blocks = select(BlockRow.id).where(BlockRow.job_id == job_id)
        tables = [table for table in reversed(Base.metadata.sorted_tables) if table.name != "jobs"]
        # Whatever names no job itself goes first, as long as its session or block is there to be found by.
        for table in sorted(tables, key=lambda table: "job_id" in table.c):
            if "job_id" in table.c:
                self._connection.execute(delete(table).where(table.c.job_id == job_id))
            elif "session_id" in table.c:
                self._connection.execute(delete(table).where(table.c.session_id.in_(sessions)))
            elif "block_id" in table.c:
                self._connection.execute(delete(table).where(table.c.block_id.in_(blocks)))
        self._connection.execute(delete(JobRow).where(JobRow.id == job_id))

    def set_stage(self, job_id: str, stage: Stage) -> bool:
        """Note what a running job is doing; return whether that is new."""
        return self._connection.execute(_SET_STAGE, {"job": job_id, "now_stage": stage}).rowcount == 1

    def set_standing(self, job_id: str, standing: Standing | None) -> None:
        """Note which strategy the planner holds for best; the race's event makes it a new version."""
        self._connection.execute(update(JobRow).where(JobRow.id == job_id).values(standing=standing))

    def set_waiting(self, job_id: str, version: int, reason: str) -> int | None:
        """Say what a queued or running job of this version waits for; return its new version.

        None when it says so already, or has another version or state.
        """
        query = (
            update(JobRow)
            .where(
                JobRow.id == job_id,
                JobRow.version == version,
                JobRow.state.in_([JobState.QUEUED, JobState.RUNNING]),
                JobRow.state_reason != reason,
            )
            .values(state_reason=reason, version=JobRow.version + 1)
            .returning(JobRow.version)
        )
        return self._connection.execute(query).scalar_one_or_none()

    def learn(
        self, job_id: str, facts: WorkloadFacts, baseline: dict[str, Value], refusals: dict[str, str]
    ) -> bool:
        """Keep what the first session saw of the script; later sessions change nothing."""
        query = (
            update(JobRow)
            .where(JobRow.id == job_id, JobRow.facts.is_(None))
            .values(facts=facts, baseline=baseline, refusals=refusals)
        )
        return self._connection.execute(query).rowcount == 1

    def earlier(self, job_id: str) -> tuple[EarlierJob, ...] | None:
        """Return the strategies of similar jobs that were chosen for this one; None while none were looked for."""
        row = self._connection.execute(_EARLIER, {"job": job_id})
        found: tuple[EarlierJob, ...] | None = row.scalar_one_or_none()
        return found

    def earlier_launches(self, job_id: str) -> tuple[EarlierLaunches, ...]:
        """Return what the verdicts of earlier jobs on its nodes say of their launches, as it was chosen."""
        row = self._connection.execute(_EARLIER_LAUNCHES, {"job": job_id})
        found: tuple[EarlierLaunches, ...] | None = row.scalar_one_or_none()
        return found or ()

    def choose_earlier(
        self, job_id: str, earlier: tuple[EarlierJob, ...], launches: tuple[EarlierLaunches, ...] = ()
    ) -> bool:
        """Keep what earlier jobs teach this one; the first choice stands. Return whether this one is it."""
        query = (
            update(JobRow)
            .where(JobRow.id == job_id, JobRow.earlier.is_(None))
            .values(earlier=earlier, earlier_launches=launches)
        )
        return self._connection.execute(query).rowcount == 1

    def finished_with_advice(self, other_than: str, limit: int) -> list[tuple[Job, Advice]]:
        """Return finished jobs other than `other_than` with their advice, the latest first."""
        query = (
            select(JobRow, AdviceRow.body.label("body"))
            .join(AdviceRow, AdviceRow.job_id == JobRow.id)
            .where(JobRow.state == JobState.FINISHED, JobRow.id != other_than)
            .order_by(JobRow.serial.desc())
        )
        return read_each(self._connection, query, JobRow.id, lambda row: (_job(row), row.body), limit)

    def find_submission(self, token_id: str, key: str) -> tuple[str, str] | None:
        """Return the job id and the request's hash that the token's key stands for."""
        row = self._connection.execute(
            select(IdempotencyRow.job_id, IdempotencyRow.request_sha256).where(
                IdempotencyRow.token_id == token_id, IdempotencyRow.key == key
            )
        ).one_or_none()
        return (row.job_id, row.request_sha256) if row else None

    def remember_submission(
        self, token_id: str, key: str, request_sha256: str, job_id: str, now: datetime
    ) -> None:
        """Let the token's key stand for this job."""
        self._connection.execute(
            insert(IdempotencyRow).values(
                token_id=token_id, key=key, request_sha256=request_sha256, job_id=job_id, created_at=now
            )
        )


_WITHOUT_SESSION = (
    select(JobRow)
    .where(
        JobRow.state.in_([JobState.QUEUED, JobState.RUNNING]),
        ~select(1).where(SessionRow.job_id == JobRow.id, SessionRow.state.in_(LIVE_SESSIONS)).exists(),
    )
    .order_by(JobRow.serial)
)
_SET_STAGE = (
    update(JobRow)
    .where(
        JobRow.id == bindparam("job"),
        JobRow.state == JobState.RUNNING,
        JobRow.stage != bindparam("now_stage"),
    )
    .values(stage=bindparam("now_stage"), version=JobRow.version + 1)
)
_GET = select(JobRow).where(JobRow.id == bindparam("job"))
_EARLIER = select(JobRow.earlier).where(JobRow.id == bindparam("job"))
_EARLIER_LAUNCHES = select(JobRow.earlier_launches).where(JobRow.id == bindparam("job"))
_VERSION = select(JobRow.version).where(JobRow.id == bindparam("job"))
_LOCK_OF = (
    select(JobRow.serial)
    .where(
        JobRow.id == select(SessionRow.job_id).where(SessionRow.id == bindparam("session")).scalar_subquery()
    )
    .with_for_update()
)


def _conditions(wanted: JobQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.state:
        found.append(JobRow.state.in_(wanted.state))
    if wanted.owner is not None:
        found.append(JobRow.owner == wanted.owner)
    if wanted.name is not None:
        found.append(_is_or_begins(JobRow.name, wanted.name))
    if wanted.id is not None:
        found.append(_is_or_begins(JobRow.id, wanted.id))
    if wanted.created_since is not None:
        found.append(JobRow.created_at >= wanted.created_since)
    if wanted.created_until is not None:
        found.append(JobRow.created_at < wanted.created_until)
    if not wanted.archived:
        found.append(JobRow.archived_at.is_(None))
    for label in wanted.label:
        key, equals, value = label.partition("=")
        labelled = select(LabelRow.job_id).where(LabelRow.key == key)
        found.append(JobRow.id.in_(labelled.where(LabelRow.value == value) if equals else labelled))
    return found


def _is_or_begins(column: InstrumentedAttribute[str], wanted: str) -> ColumnElement[bool]:
    if not wanted.endswith("*"):
        return column == wanted
    # LIKE would take small letters for large ones on SQLite, and not on PostgreSQL.
    beginning = wanted.removesuffix("*")
    return func.substr(column, 1, len(beginning)) == beginning


def _job(row: AnyRow) -> Job:
    return Job.model_construct(
        **{name: getattr(row, name) for name in Job.model_fields}
        | {"state": JobState(row.state), "stage": Stage(row.stage)}
    )
