"""Everything that a person can ask the server for, each as one request and how its answer is read.

Pure functions: nothing is sent here. `Client` sends them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import httpx

from advisor.client.answers import ExportedFile, read_file
from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.answers.previews import JobPreview
from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.asked.jobs import Continuation, Job, JobSpec, Prioritisation
from advisor.protocol.measured.telemetry import TelemetryPoint
from advisor.protocol.measured.trials import BlockPage, HistoryPage, SessionPage, TrialPage
from advisor.protocol.reading import read_document
from advisor.protocol.training.workload import WITH_SECRETS
from advisor.protocol.views import (
    AgentPage,
    CreatedToken,
    Drain,
    EventPage,
    JobPage,
    JobQuery,
    LogPage,
    NewToken,
    TokenPage,
    TokenRotation,
)

Answer = TypeVar("Answer")
Document = TypeVar("Document")


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request, and what its answer means."""

    method: str
    path: str
    """Below /api/v1."""
    read: Callable[[httpx.Response], Answer]
    params: Mapping[str, str | float | list[str]] = field(default_factory=dict)
    body: Any = field(default=None, repr=False)
    """Plain JSON; None sends nothing. It may hold secrets of a job, and stamina logs each call that it repeats."""
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Whether sending it twice does no more than sending it once."""


def preview_job(spec: JobSpec) -> Call[JobPreview]:
    """Have the server check `spec` and say what the job would do, without storing anything."""
    return Call("POST", "/jobs", _reader(JobPreview), params={"validate_only": "true"}, body=_dump(spec))


def submit_job(spec: JobSpec, idempotency_key: str) -> Call[Job]:
    """Submit `spec`; repeating it with the same key gives the same job."""
    return Call("POST", "/jobs", _reader(Job), body=_dump(spec), headers=_key(idempotency_key))


def list_jobs(wanted: JobQuery = JobQuery()) -> Call[JobPage]:
    """Return a page of jobs, newest first."""
    params = wanted.model_dump(mode="json", exclude_defaults=True)
    return Call("GET", "/jobs", _reader(JobPage), params=params)


def job(job_id: str) -> Call[Job]:
    """Return one job by its full id."""
    return Call("GET", f"/jobs/{job_id}", _reader(Job))


def cancel_job(job_id: str) -> Call[Job]:
    """Ask for a job to be cancelled."""
    return Call("POST", f"/jobs/{job_id}:cancel", _reader(Job))


def pause_job(job_id: str) -> Call[Job]:
    """Let a job start nothing new; what it is measuring is measured to its end."""
    return Call("POST", f"/jobs/{job_id}:pause", _reader(Job))


def resume_job(job_id: str) -> Call[Job]:
    """Let a paused job go on where it stood."""
    return Call("POST", f"/jobs/{job_id}:resume", _reader(Job))


def prioritise_job(job_id: str, wanted: Prioritisation) -> Call[Job]:
    """Let a job come earlier or later among those that wait."""
    return Call("POST", f"/jobs/{job_id}:prioritise", _reader(Job), body=_dump(wanted))


def repeat_trial(job_id: str, number: int) -> Call[Job]:
    """Let a strategy that the search has measured race the baseline once more."""
    return Call("POST", f"/jobs/{job_id}/trials/{number}:repeat", _reader(Job))


def extend_job(job_id: str, more: Continuation, idempotency_key: str) -> Call[Job]:
    """Give a job that has ended more budget; repeating it with the same key gives it once."""
    path = f"/jobs/{job_id}:extend"
    return Call("POST", path, _reader(Job), body=_dump(more), headers=_key(idempotency_key))


def archive_job(job_id: str) -> Call[Job]:
    """Leave a job that has ended out of lists."""
    return Call("POST", f"/jobs/{job_id}:archive", _reader(Job))


def unarchive_job(job_id: str) -> Call[Job]:
    """Take a job back into lists."""
    return Call("POST", f"/jobs/{job_id}:unarchive", _reader(Job))


def clone_job(job_id: str, idempotency_key: str) -> Call[Job]:
    """Submit a job's specification again; repeating it with the same key gives the same job."""
    return Call("POST", f"/jobs/{job_id}:clone", _reader(Job), headers=_key(idempotency_key))


def delete_job(job_id: str) -> Call[None]:
    """Delete a job that has ended, with all that was measured for it."""
    return Call("DELETE", f"/jobs/{job_id}", _nothing, repeatable=False)


def history_page(job_id: str, limit: int = 200, cursor: str | None = None) -> Call[HistoryPage]:
    """Return a page of everything measured for a job so far: trials, blocks and sessions, `limit` of each."""
    return Call("GET", f"/jobs/{job_id}/history", _reader(HistoryPage), _given(limit=limit, cursor=cursor))


def trials(job_id: str, limit: int = 500, cursor: str | None = None) -> Call[TrialPage]:
    """Return a page of a job's trials, by number."""
    return Call("GET", f"/jobs/{job_id}/trials", _reader(TrialPage), _given(limit=limit, cursor=cursor))


def blocks(job_id: str, limit: int = 500, cursor: str | None = None) -> Call[BlockPage]:
    """Return a page of a job's blocks, session by session in the order they were issued."""
    return Call("GET", f"/jobs/{job_id}/blocks", _reader(BlockPage), _given(limit=limit, cursor=cursor))


def sessions(job_id: str, limit: int = 500, cursor: str | None = None) -> Call[SessionPage]:
    """Return a page of a job's sessions, oldest first."""
    return Call("GET", f"/jobs/{job_id}/sessions", _reader(SessionPage), _given(limit=limit, cursor=cursor))


def telemetry(job_id: str, limit: int = 10_000) -> Call[tuple[TelemetryPoint, ...]]:
    """Return samples of the job's latest session, evenly thinned out to at most `limit`."""
    read = _reader(tuple[TelemetryPoint, ...])
    return Call("GET", f"/jobs/{job_id}/telemetry", read, params={"limit": limit})


def events(job_id: str, after: int) -> Call[EventPage]:
    """Return the job's events after sequence number `after`."""
    return Call("GET", f"/jobs/{job_id}/events", _reader(EventPage), params={"after": after})


def logs(job_id: str, after: int) -> Call[LogPage]:
    """Return what the training processes wrote after sequence number `after`."""
    return Call("GET", f"/jobs/{job_id}/logs", _reader(LogPage), params={"after": after})


def advice(job_id: str) -> Call[Advice]:
    """Return the advice; an `ApiProblem` with code `advice_not_ready` while there is none."""
    return Call("GET", f"/jobs/{job_id}/advice", _reader(Advice))


def race_answer(job_id: str) -> Call[RaceAnswer]:
    """Return what a finished race of two commands found; an `ApiProblem` with `advice_not_ready` before that."""
    return Call("GET", f"/jobs/{job_id}/race", _reader(RaceAnswer))


def forecast(
    job_id: str, nodes: int | None = None, rate: str | None = None, batch: float | None = None
) -> Call[Forecast]:
    """Return what the cost model expects on `nodes` nodes, links of `rate` (`25gbit`), `batch` times the batch."""
    params = _given(nodes=nodes, rate=rate, batch=batch)
    return Call("GET", f"/jobs/{job_id}/forecast", _reader(Forecast), params=params)


def export_strategy(job_id: str, name: str, target: str | None = None) -> Call[ExportedFile]:
    """Return the advised strategy in format `name`, for version `target` of the tool that reads it."""
    params = _given(format=name, target=target, download=1)
    read = partial(read_file, default=f"strategy-{name}")
    return Call("GET", f"/jobs/{job_id}/strategy", read, params=params)


def list_agents(limit: int = 500, cursor: str | None = None, name: str | None = None) -> Call[AgentPage]:
    """Return a page of the agents that the server knows, by name; with `name` the one that has it."""
    return Call("GET", "/agents", _reader(AgentPage), _given(limit=limit, cursor=cursor, name=name))


def readmit_agent(agent_id: str) -> Call[None]:
    """Let an agent register again that was turned out."""
    return Call("POST", f"/agents/{agent_id}:readmit", _nothing)


def drain_agent(agent_id: str, wanted: Drain) -> Call[None]:
    """Give an agent no further session; what it holds goes on to its end."""
    return Call("POST", f"/agents/{agent_id}:drain", _nothing, body=_dump(wanted))


def resume_agent(agent_id: str) -> Call[None]:
    """Give a drained agent sessions again."""
    return Call("POST", f"/agents/{agent_id}:resume", _nothing)


def remove_agent(agent_id: str) -> Call[None]:
    """Take an agent that holds no session out of every list; what was measured with it stays."""
    return Call("DELETE", f"/agents/{agent_id}", _nothing)


def create_token(wanted: NewToken) -> Call[CreatedToken]:
    """Create a token; its secret is in this answer only."""
    return Call("POST", "/tokens", _reader(CreatedToken), body=_dump(wanted), repeatable=False)


def rotate_token(token_id: str, wanted: TokenRotation) -> Call[CreatedToken]:
    """Make a token that takes the place of one that soon ends; its secret is in this answer only."""
    path = f"/tokens/{token_id}:rotate"
    return Call("POST", path, _reader(CreatedToken), body=_dump(wanted), repeatable=False)


def list_tokens(limit: int = 500, cursor: str | None = None) -> Call[TokenPage]:
    """Return a page of tokens without their secrets, newest first."""
    return Call("GET", "/tokens", _reader(TokenPage), _given(limit=limit, cursor=cursor))


def revoke_token(token_id: str) -> Call[None]:
    """Make a token useless."""
    return Call("DELETE", f"/tokens/{token_id}", _nothing)


def _reader(kind: type[Document]) -> Callable[[httpx.Response], Document]:
    return lambda reply: read_document(kind, reply.content)


def _nothing(_: httpx.Response) -> None:
    return None


def _dump(message: Any) -> Any:
    return message.model_dump(mode="json", context=WITH_SECRETS)


def _key(idempotency_key: str) -> dict[str, str]:
    return {"Idempotency-Key": idempotency_key}


def _given(**params: str | float | None) -> dict[str, str | float | list[str]]:
    return {name: value for name, value in params.items() if value is not None}
