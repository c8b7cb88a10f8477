"""What the pages look up: a small interface with one method per question a page asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from advisor.exporters import Exported, FormatInfo
from advisor.protocol.answers.advice import Advice, Forecast
from advisor.protocol.answers.previews import JobPreview
from advisor.protocol.asked.jobs import Continuation, Job, JobSpec, JobState
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
    Role,
    TokenPage,
    TokenRotation,
)
from advisor.services.jobs import may_change
from advisor.services.tokens import Principal


@dataclass(frozen=True)
class Person:
    """Who is looking."""

    name: str
    role: Role
    team: str = ""
    token_id: str = ""

    @property
    def principal(self) -> Principal:
        """The same person as the services know them."""
        return Principal(self.token_id, self.role, self.name, self.team)

    @property
    def may_administer(self) -> bool:
        """Whether this person may change agents, and see, make and revoke tokens."""
        return self.role is Role.ADMIN

    @property
    def may_submit(self) -> bool:
        """Whether this person may submit jobs."""
        return self.role in {Role.SUBMITTER, Role.ADMIN}

    def may_change(self, job: Job) -> bool:
        """Whether this person may stop a job, and give it more time when it has ended."""
        return may_change(self.principal, job)


class Source(Protocol):
    """Every look-up of the pages. A method raises AdvisorError where it has no answer (404, 409, 422)."""

    def open_visit(self, key: str, token: str) -> bool:
        """Let `key` stand for the person whose token this is; False when it is unknown, revoked or an agent's."""
        ...

    def find_visitor(self, key: str) -> Person | None:
        """Return for whom `key` stands; None when it stands for nobody any more."""
        ...

    def close_visit(self, key: str) -> None:
        """Let `key` stand for nobody."""
        ...

    def list_jobs(self, state: JobState | None, limit: int, cursor: str | None) -> JobPage:
        """Return one page of jobs, newest first."""
        ...

    def job(self, job_id: str) -> Job:
        """Return the job."""
        ...

    def history(self, job_id: str) -> JobHistory:
        """Return everything measured for the job so far."""
        ...

    def telemetry(self, job_id: str) -> SessionTelemetry:
        """Return the telemetry of the job's latest session; without series when there is none."""
        ...

    def runs(self, job_id: str) -> Sequence[ProductionRun]:
        """Return the real trainings that report for the job, the latest report first."""
        ...

    def advice(self, job_id: str) -> Advice | None:
        """Return the job's advice; None while there is none."""
        ...

    def events(self, job_id: str, after: int, limit: int) -> Sequence[JobEvent]:
        """Return the events with a number above `after`, oldest first, at most `limit`."""
        ...

    def newest_event(self, job_id: str) -> int:
        """Return the number of the job's last event."""
        ...

    def log(self, job_id: str, after: int, limit: int) -> Sequence[LogChunk]:
        """Return the log chunks with a number above `after`, oldest first, at most `limit`."""
        ...

    def agents(self) -> Sequence[AgentView]:
        """Return every agent that ever introduced itself."""
        ...

    def drain_agent(self, agent_id: str, reason: str, person: Person) -> None:
        """Give an agent no further session until it is resumed. Raises Forbidden."""
        ...

    def resume_agent(self, agent_id: str, person: Person) -> None:
        """Give an agent sessions again that was drained or set aside. Raises Forbidden."""
        ...

    def remove_agent(self, agent_id: str, person: Person) -> None:
        """Take an agent out of every list for good. Raises Forbidden, and AgentIsBusy while it holds a session."""
        ...

    def predict(self, job_id: str, nodes: int | None, rate: str | None, batch: float) -> Forecast:
        """Return what the cost model expects on another cluster; None is as measured. Raises NoForecast."""
        ...

    def export_formats(self) -> Sequence[FormatInfo]:
        """Return the formats that strategies can be written in."""
        ...

    def export(self, job_id: str, format_name: str, target: str | None) -> Exported:
        """Return the job's advised strategy in that format."""
        ...

    def bundle(self, job_id: str) -> Mapping[str, str]:
        """Return the files of the job's advised strategy by name, with a summary and a report."""
        ...

    def report(self, job_id: str) -> str:
        """Return the job's answer and all that was tried as one HTML page."""
        ...

    def preview(self, spec: JobSpec, person: Person) -> JobPreview:
        """Return what submitting this job would do; stores nothing. Raises InvalidJob."""
        ...

    def submit(self, spec: JobSpec, person: Person, request_key: str) -> Job:
        """Store a new job; the same key gives the same job again. Raises InvalidJob, and Forbidden for viewers."""
        ...

    def cancel(self, job_id: str, person: Person) -> Job:
        """Ask the job to stop; what it measured stays."""
        ...

    def pause(self, job_id: str, person: Person) -> Job:
        """Let the job start nothing new; what it is measuring is measured to its end."""
        ...

    def resume(self, job_id: str, person: Person) -> Job:
        """Let a paused job go on where it stood."""
        ...

    def repeat_trial(self, job_id: str, number: int, person: Person) -> Job:
        """Let a trial race once more, while the job searches."""
        ...

    def continue_job(self, job_id: str, more: Continuation, person: Person) -> Job:
        """Give a job that has ended more budget; it goes on where it stood."""
        ...

    def tokens(self, person: Person, of_agents: bool, limit: int, cursor: str | None) -> TokenPage:
        """Return a page of tokens, newest first: those of agents, or the others. Raises Forbidden."""
        ...

    def create_token(self, wanted: NewToken, person: Person) -> CreatedToken:
        """Make a token; the answer is the only place where it can be read. Raises Forbidden."""
        ...

    def rotate_token(self, token_id: str, wanted: TokenRotation, person: Person) -> CreatedToken:
        """Make a token like this one, which ends after a while of grace. Raises Forbidden."""
        ...

    def revoke_token(self, token_id: str, person: Person) -> None:
        """Make a token useless at once. Raises Forbidden."""
        ...
