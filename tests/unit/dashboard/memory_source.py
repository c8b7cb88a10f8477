"""A literal `Source` in memory: stories, agents and tokens as a test puts them there."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape

from advisor.dashboard.source import Person
from advisor.errors import (
    AdviceNotReady,
    AgentNotFound,
    Forbidden,
    JobIsFinal,
    JobIsLive,
    JobNotFound,
    NoForecast,
    NotYourJob,
    TokenNotFound,
    UnknownFormat,
)
from advisor.exporters import Exported, FormatInfo, export_bundle, export_report
from advisor.protocol.answers.advice import Advice, Forecast, Provenance, WhatIf
from advisor.protocol.answers.previews import JobPreview
from advisor.protocol.asked.jobs import Continuation, Job, JobSpec, JobState
from advisor.protocol.measured.runs import ProductionRun
from advisor.protocol.measured.telemetry import SessionTelemetry
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.nodes.testbed import read_rate
from advisor.protocol.views import (
    AgentView,
    CreatedToken,
    EventKind,
    JobEvent,
    JobPage,
    LogChunk,
    NewToken,
    Role,
    TokenPage,
    TokenRotation,
    TokenView,
)
from advisor.services.jobs import check_spec
from advisor.tuning.asked import PlannerTuning
from advisor.tuning.explain.forecast import ForecastImpossible
from tests.samples.job import Story

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def read_words(page: str) -> str:
    """Return what a page says, without its tags: a command's words stand in elements of their own."""
    return unescape(re.sub(r"<[^>]+>", "", page))


class Clock:
    """The time as a test sets it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, length: timedelta) -> None:
        self.now += length


FORMATS = (
    FormatInfo(
        name="ddp-python",
        filename="ddp_strategy.py",
        media_type="text/x-python",
        meaning="A Python module that builds DistributedDataParallel with the strategy.",
    ),
    FormatInfo(
        name="paddle-prototxt",
        filename="strategy.prototxt",
        media_type="text/plain",
        meaning="What fleet.DistributedStrategy.load_from_prototxt reads.",
        targets=("3.3.1", "2.6.2"),
    ),
)


class MemorySource:
    """Answers from what it was given; a test changes it in place."""

    def __init__(self) -> None:
        self.stories: dict[str, Story] = {}
        self.connected: tuple[AgentView, ...] = ()
        self.people: dict[str, Person] = {}
        self.visits: dict[str, str] = {}
        self.continued: list[tuple[str, Continuation, str]] = []
        self.submitted: dict[str, str] = {}
        self.known_tokens: dict[str, TokenView] = {
            token.id: token
            for token in (
                TokenView(id="1", role=Role.ADMIN, label="root", created_at=NOW),
                TokenView(id="old", role=Role.VIEWER, created_at=NOW, expires_at=NOW - timedelta(days=1)),
                TokenView(id="many", role=Role.AGENT, label="rack 7", created_at=NOW, uses_left=3),
                TokenView(id="own", role=Role.AGENT, label="node01", agent="node01", created_at=NOW),
            )
        }
        self.is_broken = False

    def tell(self, story: Story) -> None:
        """Store a story, or replace the one of the same job."""
        self.stories[story.job.id] = story

    def happen(self, job_id: str, kind: str, sentence: str, at: datetime) -> None:
        """Add an event to a job's story."""
        story = self._story(job_id)
        event = JobEvent(seq=len(story.events) + 1, at=at, kind=EventKind(kind), sentence=sentence)
        self.tell(replace(story, events=(*story.events, event)))

    def _story(self, job_id: str) -> Story:
        if self.is_broken:
            raise RuntimeError("the test's source is broken")
        if job_id not in self.stories:
            raise JobNotFound(f"There is no job {job_id}.")
        return self.stories[job_id]

    def open_visit(self, key: str, token: str) -> bool:
        self.visits[key] = token
        return token in self.people

    def find_visitor(self, key: str) -> Person | None:
        return self.people.get(self.visits.get(key, ""))

    def close_visit(self, key: str) -> None:
        self.visits.pop(key, None)

    def list_jobs(self, state: JobState | None, limit: int, cursor: str | None) -> JobPage:
        jobs = [story.job for story in self.stories.values() if state in {None, story.job.state}]
        jobs.sort(key=lambda job: job.created_at, reverse=True)
        start = int(cursor or 0)
        following = str(start + limit) if len(jobs) > start + limit else None
        return JobPage(items=tuple(jobs[start : start + limit]), next_cursor=following)

    def job(self, job_id: str) -> Job:
        return self._story(job_id).job

    def history(self, job_id: str) -> JobHistory:
        return self._story(job_id).history

    def telemetry(self, job_id: str) -> SessionTelemetry:
        return self._story(job_id).telemetry

    def runs(self, job_id: str) -> Sequence[ProductionRun]:
        return self._story(job_id).runs

    def advice(self, job_id: str) -> Advice | None:
        return self._story(job_id).advice

    def events(self, job_id: str, after: int, limit: int) -> Sequence[JobEvent]:
        return [event for event in self._story(job_id).events if event.seq > after][:limit]

    def newest_event(self, job_id: str) -> int:
        return max((event.seq for event in self._story(job_id).events), default=0)

    def log(self, job_id: str, after: int, limit: int) -> Sequence[LogChunk]:
        return [part for part in self._story(job_id).log if part.seq > after][:limit]

    def agents(self) -> Sequence[AgentView]:
        return self.connected

    def drain_agent(self, agent_id: str, reason: str, person: Person) -> None:
        self._change_agent(agent_id, reason, person)

    def resume_agent(self, agent_id: str, person: Person) -> None:
        self._change_agent(agent_id, None, person)

    def remove_agent(self, agent_id: str, person: Person) -> None:
        self._change_agent(agent_id, None, person)
        self.connected = tuple(agent for agent in self.connected if agent.id != agent_id)

    def _change_agent(self, agent_id: str, drained_because: str | None, person: Person) -> None:
        if not person.may_administer:
            raise Forbidden("Only administrators may do that.")
        if agent_id not in {agent.id for agent in self.connected}:
            raise AgentNotFound(f"There is no agent {agent_id}.")
        update = {"drained_because": drained_because, "flag": None}
        self.connected = tuple(
            agent.model_copy(update=update) if agent.id == agent_id else agent for agent in self.connected
        )

    def predict(self, job_id: str, nodes: int | None, rate: str | None, batch: float) -> Forecast:
        story = self._story(job_id)
        asked = WhatIf(nodes=nodes, bits_per_s=read_rate(rate) if rate else None, batch=batch)
        try:
            return PlannerTuning().forecast(story.job, story.history, NOW, asked)
        except ForecastImpossible as error:
            raise NoForecast(str(error)) from error

    def export_formats(self) -> Sequence[FormatInfo]:
        return FORMATS

    def export(self, job_id: str, format_name: str, target: str | None) -> Exported:
        advice = self._story(job_id).advice
        if advice is None:
            raise AdviceNotReady("The job has no advice yet.")
        info = next((entry for entry in FORMATS if entry.name == format_name), None)
        if info is None:
            raise UnknownFormat(f"There is no format {format_name}.")
        return Exported(
            format=info.name,
            target=target or "",
            filename=info.filename,
            media_type=info.media_type,
            content=f"# {advice.headline}\n# <script>alert(1)</script>\nmodel = DDP(model, bucket_cap_mb=96)\n",
            provenance={"fuse_grad_size_in_MB": Provenance.TRANSLATED},
            unmapped={
                "nccl_comm_num": "DDP has one communicator; the advisor's hook would have to come along."
            },
            warnings=("Valid for 16 ranks on this hardware.",),
        )

    def bundle(self, job_id: str) -> Mapping[str, str]:
        story = self._story(job_id)
        if story.advice is None:
            raise AdviceNotReady("The job has no advice yet.")
        return export_bundle(story.advice, story.job)

    def report(self, job_id: str) -> str:
        story = self._story(job_id)
        if story.advice is None:
            raise AdviceNotReady("The job has no advice yet.")
        return export_report(story.advice, story.job, story.history)

    def preview(self, spec: JobSpec, person: Person) -> JobPreview:
        check_spec(spec)
        job = Job(id="", spec=spec, state=JobState.QUEUED, owner=person.name, created_at=NOW)
        return JobPreview(**dict(job), plan=PlannerTuning().preview(job, NOW))

    def submit(self, spec: JobSpec, person: Person, request_key: str) -> Job:
        if not person.may_submit:
            raise Forbidden(f"{person.name} may not submit jobs.")
        check_spec(spec)
        if request_key not in self.submitted:
            made = Job(
                id=f"new{len(self.submitted)}",
                spec=spec,
                state=JobState.QUEUED,
                owner=person.name,
                created_at=NOW,
            )
            self.submitted[request_key] = made.id
            self.tell(Story(made, JobHistory(), None, (), ()))
        return self.job(self.submitted[request_key])

    def cancel(self, job_id: str, person: Person) -> Job:
        return self._put(job_id, person, JobState.CANCELLING)

    def pause(self, job_id: str, person: Person) -> Job:
        return self._put(job_id, person, JobState.PAUSED)

    def resume(self, job_id: str, person: Person) -> Job:
        return self._put(job_id, person, JobState.QUEUED)

    def _put(self, job_id: str, person: Person, state: JobState) -> Job:
        story = self._story_of(job_id, person)
        if story.job.state.is_final:
            raise JobIsFinal("The job has ended.")
        job = story.job.model_copy(update={"state": state})
        self.tell(replace(story, job=job))
        return job

    def _story_of(self, job_id: str, person: Person) -> Story:
        story = self._story(job_id)
        if not person.may_change(story.job):
            raise NotYourJob(f"Job {job_id} belongs to {story.job.owner}; you are {person.name}.")
        return story

    def repeat_trial(self, job_id: str, number: int, person: Person) -> Job:
        story = self._story_of(job_id, person)
        asked = [
            trial.model_copy(update={"asked_again_at": NOW}) if trial.number == number else trial
            for trial in story.history.trials
        ]
        history = story.history.model_copy(update={"trials": tuple(asked)})
        self.tell(replace(story, history=history))
        return story.job

    def continue_job(self, job_id: str, more: Continuation, person: Person) -> Job:
        story = self._story_of(job_id, person)
        if not story.job.state.is_final:
            raise JobIsLive("The job has not ended.")
        self.continued.append((job_id, more, person.name))
        job = story.job.model_copy(update={"state": JobState.QUEUED})
        self.tell(replace(story, job=job))
        return job

    def tokens(self, person: Person, of_agents: bool, limit: int, cursor: str | None) -> TokenPage:
        self._admit_administrator(person)
        found = [token for token in self.known_tokens.values() if (token.agent is not None) is of_agents]
        start = int(cursor or 0)
        following = str(start + limit) if len(found) > start + limit else None
        return TokenPage(items=tuple(found[start : start + limit]), next_cursor=following)

    def create_token(self, wanted: NewToken, person: Person) -> CreatedToken:
        self._admit_administrator(person)
        token_id = f"made{len(self.known_tokens)}"
        ends = None if wanted.expires_s is None else NOW + timedelta(seconds=wanted.expires_s)
        view = TokenView(
            id=token_id, role=wanted.role, label=wanted.label, team=wanted.team, created_at=NOW, expires_at=ends,
            uses_left=wanted.uses,
        )  # fmt: skip
        self.known_tokens[token_id] = view
        return CreatedToken(**dict(view), token=f"adv_{wanted.role.value}_{token_id}_secret")

    def rotate_token(self, token_id: str, wanted: TokenRotation, person: Person) -> CreatedToken:
        self._admit_administrator(person)
        old = self._token(token_id)
        ends = NOW + timedelta(seconds=wanted.grace_s)
        self.known_tokens[token_id] = old.model_copy(update={"expires_at": ends})
        new = NewToken(role=old.role, label=old.label, team=old.team, expires_s=wanted.expires_s)
        return self.create_token(new, person)

    def revoke_token(self, token_id: str, person: Person) -> None:
        self._admit_administrator(person)
        self.known_tokens[token_id] = self._token(token_id).model_copy(update={"revoked_at": NOW})

    def _token(self, token_id: str) -> TokenView:
        if token_id not in self.known_tokens:
            raise TokenNotFound(f"There is no token {token_id}.")
        return self.known_tokens[token_id]

    @staticmethod
    def _admit_administrator(person: Person) -> None:
        if not person.may_administer:
            raise Forbidden(f"Tokens are for administrators, and {person.name} is none.")
