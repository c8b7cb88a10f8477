"""Jobs: submitting, listing, cancelling, and everything measured for them."""

import hashlib
import re
from datetime import datetime
from importlib.util import find_spec
from pathlib import PurePosixPath

from advisor.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidJob,
    JobIsFinal,
    JobNotFound,
    NotYourJob,
    VersionMismatch,
)
from advisor.protocol.asked.jobs import HUB, Job, JobSpec, JobState, Priority
from advisor.protocol.asked.signing import Statement, is_for
from advisor.protocol.measured.telemetry import TelemetryPoint
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.reading import Unreadable, read_document
from advisor.protocol.training.launch_command import (
    Command,
    UnlaunchableCommand,
    choose_injection,
    refuse_paddle,
)
from advisor.protocol.training.workload import HIDDEN, WITH_SECRETS, WorkloadKind
from advisor.protocol.views import EventKind, JobEvent, JobPage, JobQuery, LogChunk, Role
from advisor.services.ending import cancel_if_gone, end_session
from advisor.services.pages import cut_page, read_cursor
from advisor.services.tokens import Principal
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint

_MAX_SECONDS = 30 * 24 * 3600.0
_MAX_CHARS = 65_536
_TOO_LONG = f" has more than {_MAX_CHARS} characters."
_MAX_SEED = 2**63 - 1
_SAMPLER_NEEDS = {"GPSampler": ("scipy", "torch"), "QMCSampler": ("scipy",), "CmaEsSampler": ("cmaes",)}
"""Packages that samplers of Optuna need beside it."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def submit_job(
    work: UnitOfWork, spec: JobSpec, asker: Principal, idempotency_key: str | None, now: datetime
) -> Job:
    """Store a new job; the same key with the same specification gives the same job again.

    Raises InvalidJob with a sentence for every rule that the specification breaks, Forbidden for a priority that the
    asker may not give, IdempotencyConflict when the key came before with another specification.
    """
    check_spec(spec)
    request = hashlib.sha256(spec.model_dump_json(context=WITH_SECRETS).encode()).hexdigest()
    if (repeated := find_repeated(work, asker, idempotency_key, request)) is not None:
        return repeated
    job = preview_job(spec, asker, now).model_copy(update={"id": work.new_id()})
    work.jobs.add(job)
    if idempotency_key is not None:
        work.jobs.remember_submission(asker.token_id, idempotency_key, request, job.id, now)
    work.events.append(job.id, EventKind.JOB, f"{asker.name} submitted the job.", now)
    work.reach(FaultPoint.JOB_SUBMITTED)
    work.call_scheduler()
    return get_job(work, job.id)


def find_repeated(
    work: UnitOfWork, asker: Principal, idempotency_key: str | None, request: str
) -> Job | None:
    """Return the job that this very request, told by its hash, was for before; None the first time or without a key.

    Raises IdempotencyConflict when it came before with another request.
    """
    if idempotency_key is None:
        return None
    if (earlier := work.jobs.find_submission(asker.token_id, idempotency_key)) is None:
        return None
    job_id, earlier_request = earlier
    if earlier_request != request:
        raise IdempotencyConflict(
            f"This Idempotency-Key belongs to another request, which was for job {job_id}."
        )
    return get_job(work, job_id)


def preview_job(spec: JobSpec, asker: Principal, now: datetime) -> Job:
    """Return the job that submitting `spec` would make, without an id. Raises InvalidJob, and Forbidden for a priority
    that the asker may not give."""
    check_spec(spec)
    refuse_priority(spec.priority, asker)
    _check_signed(spec)
    named = spec if spec.name else spec.model_copy(update={"name": _name_of(spec)})
    return Job(
        id="",
        spec=named,
        state=JobState.QUEUED,
        state_reason="Waiting to be looked at.",
        owner=asker.name,
        team=asker.team,
        created_at=now,
    )


def may_give(asker: Principal, priority: Priority) -> bool:
    """Whether the asker may give jobs that priority."""
    return asker.role is Role.ADMIN or priority.rank <= Priority.NORMAL.rank


def refuse_priority(priority: Priority, asker: Principal) -> None:
    """Raise Forbidden for a priority that the asker may not give."""
    if not may_give(asker, priority):
        raise Forbidden(
            f"priority is {priority.value}, which only an administrator gives.",
            hint="Ask for priority normal, or ask an administrator.",
        )


def refuse_hub(spec: JobSpec, registry: str) -> None:
    """Raise InvalidJob where the job names a sampler of OptunaHub and this server takes none from there."""
    if not spec.sampler.startswith(HUB):
        return
    if not registry:
        raise InvalidJob(
            f"sampler: {spec.sampler} is code of others that the server would run, which its owner has not allowed: "
            "start it with ADVISOR_HUB_SAMPLERS=github, or with a directory of samplers."
        )
    if find_spec("optunahub") is None:
        raise InvalidJob(
            f"sampler: {spec.sampler} needs optunahub on the server: pip install optunahub there."
        )


def check_spec(spec: JobSpec) -> None:
    """Raise InvalidJob naming every rule between fields, and every limit of the server, that `spec` breaks."""
    measurement, workload = spec.measurement, spec.workload
    broken: list[tuple[str, str]] = []
    """Fields, each with what is wrong with it."""
    if measurement.min_steps > measurement.max_steps:
        broken.append(("measurement.min_steps", " is larger than measurement.max_steps."))
    if both := sorted(set(spec.knobs) & set(spec.freeze)):
        broken.append((", ".join(both), ": in knobs and in freeze; take it out of one of them."))
    broken += [
        (name, " is more than 30 days.")
        for name, seconds in (
            ("budget.max_seconds", spec.budget.max_seconds),
            ("session_timeout_s", spec.session_timeout_s),
            ("hang_timeout_s", spec.patience_s),
        )
        if seconds > _MAX_SECONDS
    ]
    if lacking := [name for name in _SAMPLER_NEEDS.get(spec.sampler, ()) if find_spec(name) is None]:
        words = f"needs {' and '.join(lacking)} on the server: pip install 'fleet-advisor[samplers]' there."
        broken.append(("sampler", f": {spec.sampler} {words}"))
    if spec.seed > _MAX_SEED:
        broken.append(("seed", f" is larger than {_MAX_SEED}."))
    if sum(len(word) for word in workload.command) > _MAX_CHARS:
        broken.append(("workload.command", _TOO_LONG))
    else:
        try:
            if workload.kind is WorkloadKind.PYTORCH:
                refuse_paddle(workload.command)
            choose_injection(workload.injection, Command.read(workload.command))
        except UnlaunchableCommand as error:
            broken.append(("workload.command", f": {error}"))
    if sum(len(name) + len(value) for name, value in workload.environment.items()) > _MAX_CHARS:
        broken.append(("workload.environment", _TOO_LONG))
    if any(not _VARIABLE.fullmatch(name) for name in workload.environment):
        broken.append(
            ("workload.environment", " names a variable that is not letters, digits and underscores.")
        )
    if hidden := sorted(name for name, value in workload.environment.items() if value == HIDDEN):
        broken.append(
            ("workload.environment", f": {', '.join(hidden)} holds what stands for a hidden value; give it.")
        )
    texts = (
        spec.name,
        *spec.labels.values(),
        *spec.needs.values(),
        workload.working_dir,
        *workload.command,
        *workload.environment.values(),
        *workload.protect,
    )
    if any("\x00" in text for text in texts):
        broken.append(("", "The job holds a NUL character, which no command line can carry."))
    if len(workload.working_dir) + sum(len(path) for path in workload.protect) > _MAX_CHARS:
        broken.append(
            ("workload.working_dir", f" and workload.protect have more than {_MAX_CHARS} characters.")
        )
    if broken:
        raise InvalidJob(" ".join(field + wrong for field, wrong in broken), faults=broken)


def _check_signed(spec: JobSpec) -> None:
    """Raise InvalidJob where another job was signed: no agent would run this one. Whose key it was is theirs to say."""
    if spec.signed is None:
        return
    try:
        statement = read_document(Statement, spec.signed.statement)
    except Unreadable as error:
        raise InvalidJob(f"signed.statement is none of a job: {error}.") from error
    if not is_for(statement.job, spec):
        raise InvalidJob("signed.statement is of a job that differs from this one: sign it as it is now.")


def list_jobs(work: UnitOfWork, wanted: JobQuery) -> JobPage:
    """Return one page of jobs, newest first. Raises InvalidRequest for a cursor that no page gave."""
    items, next_cursor = cut_page(work.jobs.page(wanted, wanted.limit, read_cursor(wanted.cursor)))
    return JobPage(items=items, next_cursor=next_cursor)


def get_job(work: UnitOfWork, job_id: str, *, lock: bool = False) -> Job:
    """Return a job; `lock` keeps other transactions waiting. Raises JobNotFound."""
    if (job := work.jobs.lock(job_id) if lock else work.jobs.get(job_id)) is None:
        raise JobNotFound(f"There is no job {job_id}.")
    return job


def get_history(work: UnitOfWork, job_id: str) -> JobHistory:
    """Return everything measured for a job so far. Raises JobNotFound."""
    get_job(work, job_id)
    return read_history(work, job_id)


def read_history(work: UnitOfWork, job_id: str) -> JobHistory:
    """Return the same for a job that is there."""
    return JobHistory(
        trials=work.trials.of_job(job_id),
        blocks=work.blocks.of_job(job_id),
        sessions=work.sessions.of_job(job_id),
        earlier=work.jobs.earlier(job_id) or (),
        earlier_launches=work.jobs.earlier_launches(job_id),
    )


def may_change(asker: Principal, job: Job) -> bool:
    """Whether the asker may cancel or continue a job and report trainings for it.

    Its owner may, their team, and administrators.
    """
    if asker.role is not Role.SUBMITTER:
        return asker.role is Role.ADMIN
    return asker.name == job.owner or bool(job.team and asker.team == job.team)


def lock_own_job(work: UnitOfWork, job_id: str, asker: Principal, if_match: str | None = None) -> Job:
    """Return a job and keep other transactions waiting.

    Raises JobNotFound, NotYourJob for another owner's, and VersionMismatch where `if_match` names another version.
    """
    job = get_job(work, job_id, lock=True)
    if not may_change(asker, job):
        raise NotYourJob(f"Job {job_id} belongs to {job.owner or 'no owner'}; you are {asker.name}.")
    if if_match is not None and if_match not in {job.etag, "*"}:
        raise VersionMismatch(f"Job {job_id} has changed: it {job.state.predicate} now.", job.etag)
    return job


def refuse_ended(job: Job) -> None:
    """Raise JobIsFinal for a job that has ended or is being cancelled."""
    if job.state.is_final or job.state is JobState.CANCELLING:
        raise JobIsFinal(f"Job {job.id} {job.state.predicate} already.")


def cancel_job(
    work: UnitOfWork, job_id: str, asker: Principal, now: datetime, if_match: str | None = None
) -> Job:
    """Ask a job to stop; what it measured stays. Repeating it changes nothing.

    A job that holds a session is cancelling until every rank is gone. Raises JobNotFound, NotYourJob,
    VersionMismatch, and JobIsFinal for a job that has finished or failed.
    """
    job = lock_own_job(work, job_id, asker, if_match)
    if job.state in {JobState.CANCELLING, JobState.CANCELLED}:
        return job
    refuse_ended(job)
    work.reach(FaultPoint.JOB_CANCELLED)
    work.call_scheduler()
    session = work.sessions.live_of(job_id)
    since = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)
    if session is None:
        cancel_if_gone(work, job_id, now, since)
    else:
        reason = "Cancelled on request; waiting until every training process is gone."
        work.jobs.move(job_id, JobState.CANCELLING, reason, since=since, now=now)
        work.events.append(job_id, EventKind.JOB, "The job is being cancelled.", now)
        end_session(work, session, "The job was cancelled.", now, cancelled=True)
    return get_job(work, job_id)


def list_events(work: UnitOfWork, job_id: str, after: int, limit: int) -> list[JobEvent]:
    """Return a job's events with numbers above `after`, in order. Raises JobNotFound."""
    get_job(work, job_id)
    return work.events.after(job_id, after, limit)


def read_log(work: UnitOfWork, job_id: str, after: int, limit: int) -> list[LogChunk]:
    """Return what a job's processes wrote, chunks with numbers above `after`, in order. Raises JobNotFound."""
    get_job(work, job_id)
    return work.logs.after(job_id, after, limit)


def read_telemetry(work: UnitOfWork, job_id: str, limit: int) -> list[TelemetryPoint]:
    """Return samples of the job's latest session, at most `limit`, evenly thinned out. Raises JobNotFound."""
    get_job(work, job_id)
    sessions = work.sessions.of_job(job_id)
    return work.telemetry.of_session(sessions[-1].id, limit) if sessions else []


def _name_of(spec: JobSpec) -> str:
    words = spec.workload.command
    script = next((word for word in words if word.endswith(".py")), words[0])
    return PurePosixPath(script).stem[:100] or "job"
