"""The pages' look-ups, answered by the services."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from advisor.dashboard.source import Person
from advisor.errors import AdviceNotReady, Forbidden, JobNotFound, Unauthenticated, Unavailable
from advisor.exporters import Exported, FormatInfo
from advisor.protocol.answers.advice import Advice, Forecast
from advisor.protocol.answers.previews import JobPreview
from advisor.protocol.asked.jobs import Continuation, Job, JobSpec, JobState
from advisor.protocol.asked.queries import JobQuery
from advisor.protocol.measured.runs import ProductionRun
from advisor.protocol.measured.telemetry import SessionTelemetry
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import (
    AgentView,
    CreatedToken,
    JobEvent,
    JobPage,
    LogChunk,
    NewToken,
    TokenPage,
    TokenRotation,
)
from advisor.services.agents import drain_agent, remove_agent, resume_agent, view_agents
from advisor.services.answers.advice import get_advice
from advisor.services.answers.exports import bundle_strategy, export_strategy, list_formats, report_job
from advisor.services.answers.forecasts import predict
from advisor.services.answers.runs import list_runs
from advisor.services.changing.continuing import continue_job
from advisor.services.changing.pausing import pause_job, resume_job
from advisor.services.changing.repeating import repeat_trial
from advisor.services.jobs import (
    cancel_job,
    get_history,
    get_job,
    list_events,
    list_jobs,
    preview_job,
    read_log,
    submit_job,
)
from advisor.services.measuring.telemetry import read_series
from advisor.services.timers import Timers
from advisor.services.tokens import (
    create_token,
    hash_secret,
    list_tokens,
    revoke_token,
    rotate_token,
)
from advisor.services.tuning import Tuning
from advisor.services.visits import find_visit, mark_visit, open_visit
from advisor.storage import Database


class ServiceSource:
    """Answers from the database, one transaction for each look-up."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], datetime],
        tuning: Tuning,
        timers: Timers,
    ) -> None:
        """`tuning` says what a job would do."""
        self._database = database
        self._clock = clock
        self._tuning = tuning
        self._timers = timers

    def open_visit(self, key: str, token: str) -> bool:
        """Let `key` stand for the person whose token this is; False when it is unknown, revoked or an agent's."""
        try:
            with self._database.begin() as work:
                open_visit(work, key, token, self._clock())
        except Unauthenticated:
            return False
        return True

    def find_visitor(self, key: str) -> Person | None:
        """Return for whom `key` stands; None when it stands for nobody any more."""
        now = self._clock()
        with self._database.read() as work:
            found = find_visit(work, key, now)
        if found is None:
            return None
        principal, is_due = found
        if is_due:
            # A database that cannot be written to may still be read.
            with suppress(Unavailable), self._database.begin() as work:
                mark_visit(work, key, principal, now)
        return Person(principal.name, principal.role, principal.team, principal.token_id)

    def close_visit(self, key: str) -> None:
        """Let `key` stand for nobody."""
        with self._database.begin() as work:
            work.visits.remove(hash_secret(key))

    def list_jobs(self, state: JobState | None, limit: int, cursor: str | None) -> JobPage:
        """Return one page of jobs, newest first."""
        with self._database.read() as work:
            wanted = JobQuery(state=(state,) if state else (), limit=limit, cursor=cursor)
            return list_jobs(work, wanted)

    def job(self, job_id: str) -> Job:
        """Return the job."""
        with self._database.read() as work:
            return get_job(work, job_id)

    def history(self, job_id: str) -> JobHistory:
        """Return everything measured for the job so far."""
        with self._database.read() as work:
            return get_history(work, job_id)

    def telemetry(self, job_id: str) -> SessionTelemetry:
        """Return the telemetry of the job's latest session; without series when there is none."""
        with self._database.read() as work:
            return read_series(work, job_id)

    def runs(self, job_id: str) -> Sequence[ProductionRun]:
        """Return the real trainings that report for the job, the latest report first."""
        with self._database.read() as work:
            return list_runs(work, job_id)

    def advice(self, job_id: str) -> Advice | None:
        """Return the job's advice; None while there is none."""
        try:
            with self._database.read() as work:
                return get_advice(work, job_id)
        except AdviceNotReady:
            return None

    def newest_event(self, job_id: str) -> int:
        """Return the number of a job's last event. Raises JobNotFound."""
        with self._database.read() as work:
            if (newest := work.events.newest(job_id)) is None:
                raise JobNotFound(f"There is no job {job_id}.")
            return newest

    def events(self, job_id: str, after: int, limit: int) -> Sequence[JobEvent]:
        """Return the events with a number above `after`, oldest first, at most `limit`."""
        with self._database.read() as work:
            return list_events(work, job_id, after, limit)

    def log(self, job_id: str, after: int, limit: int) -> Sequence[LogChunk]:
        """Return the log chunks with a number above `after`, oldest first, at most `limit`."""
        with self._database.read() as work:
            return read_log(work, job_id, after, limit)

    def agents(self) -> Sequence[AgentView]:
        """Return every agent that ever introduced itself."""
        with self._database.read() as work:
            return view_agents(work, self._clock(), self._timers)

    def drain_agent(self, agent_id: str, reason: str, person: Person) -> None:
        """Give an agent no further session until it is resumed. Raises Forbidden."""
        _refuse_all_but_administrators(person)
        with self._database.begin() as work:
            drain_agent(work, agent_id, reason)

    def resume_agent(self, agent_id: str, person: Person) -> None:
        """Give an agent sessions again that was drained or set aside. Raises Forbidden."""
        _refuse_all_but_administrators(person)
        with self._database.begin() as work:
            resume_agent(work, agent_id)

    def remove_agent(self, agent_id: str, person: Person) -> None:
        """Take an agent out of every list for good. Raises Forbidden, and AgentIsBusy while it holds a session."""
        _refuse_all_but_administrators(person)
        with self._database.begin() as work:
            remove_agent(work, agent_id, self._clock())

    def predict(self, job_id: str, nodes: int | None, rate: str | None, batch: float) -> Forecast:
        """Return what the cost model expects on another cluster; None is as measured. Raises NoForecast."""
        return predict(self._database, self._tuning, job_id, nodes, rate, batch, self._clock())

    def export_formats(self) -> Sequence[FormatInfo]:
        """Return the formats that strategies can be written in."""
        return list_formats()

    def export(self, job_id: str, format_name: str, target: str | None) -> Exported:
        """Return the job's advised strategy in that format."""
        with self._database.read() as work:
            return export_strategy(work, job_id, format_name, target)

    def bundle(self, job_id: str) -> Mapping[str, str]:
        """Return the files of the job's advised strategy by name, with a summary and a report."""
        with self._database.read() as work:
            return bundle_strategy(work, job_id)

    def report(self, job_id: str) -> str:
        """Return the job's answer and all that was tried as one HTML page."""
        with self._database.read() as work:
            return report_job(work, job_id)

    def preview(self, spec: JobSpec, person: Person) -> JobPreview:
        """Return what submitting this job would do; stores nothing. Raises InvalidJob."""
        now = self._clock()
        job = preview_job(spec, person.principal, now)
        return JobPreview(**dict(job), plan=self._tuning.preview(job, now))

    def submit(self, spec: JobSpec, person: Person, request_key: str) -> Job:
        """Store a new job; the same key gives the same job again. Raises InvalidJob, and Forbidden for viewers."""
        if not person.may_submit:
            raise Forbidden(
                f"{person.name} may look at jobs, not submit one.",
                hint="Ask an administrator for a token of the role submitter.",
            )
        with self._database.begin() as work:
            return submit_job(work, spec, person.principal, request_key, self._clock())

    def cancel(self, job_id: str, person: Person) -> Job:
        """Ask the job to stop; what it measured stays."""
        with self._database.begin() as work:
            return cancel_job(work, job_id, person.principal, self._clock())

    def pause(self, job_id: str, person: Person) -> Job:
        """Let the job start nothing new; what it is measuring is measured to its end."""
        with self._database.begin() as work:
            return pause_job(work, job_id, person.principal, self._clock())

    def resume(self, job_id: str, person: Person) -> Job:
        """Let a paused job go on where it stood."""
        with self._database.begin() as work:
            return resume_job(work, job_id, person.principal, self._clock())

    def repeat_trial(self, job_id: str, number: int, person: Person) -> Job:
        """Let a trial race once more, while the job searches."""
        with self._database.begin() as work:
            return repeat_trial(work, job_id, number, person.principal, self._clock())

    def continue_job(self, job_id: str, more: Continuation, person: Person) -> Job:
        """Give a job that has ended more budget; it goes on where it stood."""
        with self._database.begin() as work:
            return continue_job(work, job_id, more, person.principal, None, self._clock())

    def tokens(self, person: Person, of_agents: bool, limit: int, cursor: str | None) -> TokenPage:
        """Return a page of tokens, newest first: those of agents, or the others. Raises Forbidden."""
        _refuse_all_but_administrators(person)
        with self._database.read() as work:
            return list_tokens(work, limit, cursor, of_agents)

    def create_token(self, wanted: NewToken, person: Person) -> CreatedToken:
        """Make a token; the answer is the only place where it can be read. Raises Forbidden."""
        _refuse_all_but_administrators(person)
        with self._database.begin() as work:
            return create_token(work, wanted, self._clock())

    def rotate_token(self, token_id: str, wanted: TokenRotation, person: Person) -> CreatedToken:
        """Make a token like this one, which ends after a while of grace. Raises Forbidden."""
        _refuse_all_but_administrators(person)
        with self._database.begin() as work:
            return rotate_token(work, token_id, wanted, self._clock())

    def revoke_token(self, token_id: str, person: Person) -> None:
        """Make a token useless at once. Raises Forbidden."""
        _refuse_all_but_administrators(person)
        with self._database.begin() as work:
            revoke_token(work, token_id, self._clock())


def _refuse_all_but_administrators(person: Person) -> None:
    if not person.may_administer:
        raise Forbidden(
            f"Only administrators may do that, and {person.name} is a {person.role.value}.",
            hint="Ask an administrator for what you need.",
        )
