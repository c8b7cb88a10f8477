"""A server over real HTTP that answers from what a test puts into it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel

from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.answers.previews import JobPreview
from advisor.protocol.asked.jobs import Continuation, Job, JobSpec, JobState, Prioritisation
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import (
    EventFacts,
    EventKind,
    EventPage,
    JobEvent,
    JobPage,
    JobQuery,
    LogChunk,
    LogPage,
)
from advisor.tuning.explain.preview import preview_plan

TOKEN = "adv_admin_t1_secret"
BIRTH = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
_CHANGES: dict[str, dict[str, Any]] = {
    "pause": {"state": JobState.PAUSED},
    "resume": {"state": JobState.QUEUED},
    "extend": {"state": JobState.QUEUED},
    "archive": {"archived_at": BIRTH},
    "unarchive": {"archived_at": None},
}


class FakeServer:
    """Jobs, events and answers of a pretended server. `lives` are states a job goes through, one per look."""

    def __init__(self) -> None:
        self.url = ""
        self.jobs: dict[str, Job] = {}
        self.page_of = 1000
        """Jobs after which a page ends: a server ends it where they are large."""
        self.lives: dict[str, list[JobState]] = {}
        self.events: dict[str, list[JobEvent]] = {}
        self.logs: dict[str, list[LogChunk]] = {}
        self.advice: Advice | None = None
        self.forecast: Forecast | None = None
        self.asked_forecast: dict[str, str] = {}
        self.history = JobHistory()
        self.problems: dict[str, tuple[int, dict[str, Any]]] = {}
        self.cancelled: list[str] = []
        self.continued: dict[str, Continuation] = {}
        self.repeated: list[tuple[str, str]] = []
        self.submitted: list[JobSpec] = []
        self.tokens_wanted: list[tuple[str, dict[str, Any]]] = []
        """Path and body of every request that makes a token or readmits an agent."""
        self.agents: list[dict[str, Any]] = []
        self.asked_jobs: list[dict[str, list[str]]] = []
        """The query of every list of jobs."""
        self.drops = 0
        """That many requests are answered by closing the connection."""

    def add_job(
        self, job_id: str, state: JobState = JobState.QUEUED, name: str = "train", **fields: Any
    ) -> Job:
        """Add a job, a minute younger than the one before."""
        spec = fields.pop("spec", None) or JobSpec.model_validate(
            {"name": name, "workload": {"command": ["torchrun", "train.py"], "working_dir": "/data"}}
        )
        created = BIRTH + timedelta(minutes=len(self.jobs))
        self.jobs[job_id] = Job(id=job_id, spec=spec, state=state, created_at=created, **fields)
        return self.jobs[job_id]

    def add_event(
        self,
        job_id: str,
        sentence: str,
        kind: EventKind = EventKind.TRIAL,
        facts: EventFacts | None = None,
    ) -> None:
        """Add something that happened to a job."""
        events = self.events.setdefault(job_id, [])
        at = BIRTH + timedelta(seconds=65 * (len(events) + 1))
        events.append(JobEvent(seq=len(events) + 1, at=at, kind=kind, sentence=sentence, facts=facts))

    def answer(self, method: str, path: str, asked: dict[str, list[str]], body: bytes) -> tuple[int, Any]:
        """Return status and body for a request below /api/v1."""
        query = {name: words[0] for name, words in asked.items()}
        if path in self.problems:
            return self.problems[path]
        if path == "/jobs":
            return self._submit(query, body) if method == "POST" else (200, self._list(asked))
        if path == "/agents":
            wanted = query.get("name")
            return 200, {"items": [one for one in self.agents if wanted in {None, one["name"]}]}
        if path.startswith(("/tokens", "/agents/")):
            self.tokens_wanted.append((path, json.loads(body or b"{}")))
            made = {"id": "t2", "role": "agent", "created_at": BIRTH.isoformat(), "token": "adv_agent_t2_new"}
            return (204, b"") if path.startswith("/agents/") else (201, json.dumps(made).encode())
        job_id, _, rest = path.removeprefix("/jobs/").partition("/")
        job_id, _, verb = job_id.partition(":")
        if job_id not in self.jobs:
            return 404, {"title": "Not Found", "code": "no_such_job", "detail": f"There is no job {job_id}."}
        if verb == "cancel":
            self.cancelled.append(job_id)
            self.jobs[job_id] = self.jobs[job_id].model_copy(update={"state": JobState.CANCELLED})
            return 200, self.jobs[job_id]
        if verb == "extend":
            self.continued[job_id] = Continuation.model_validate_json(body)
        if rest.endswith(":repeat"):
            self.repeated.append((job_id, rest))
            return 200, self.jobs[job_id]
        if verb == "prioritise":
            wanted = Prioritisation.model_validate_json(body)
            spec = self.jobs[job_id].spec.model_copy(update={"priority": wanted.priority})
            self.jobs[job_id] = self.jobs[job_id].model_copy(update={"spec": spec})
            return 200, self.jobs[job_id]
        if verb == "clone":
            return 201, self.add_job(f"{job_id}-again", spec=self.jobs[job_id].spec)
        if verb in _CHANGES:
            self.jobs[job_id] = self.jobs[job_id].model_copy(update=_CHANGES[verb])
            return 200, self.jobs[job_id]
        if method == "DELETE":
            del self.jobs[job_id]
            return 204, b""
        if rest == "forecast" and self.forecast:
            self.asked_forecast = self.asked_forecast or query
            return 200, self.forecast
        return self._answer_about(job_id, rest, int(query.get("after", 0)))

    def _submit(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        spec = JobSpec.model_validate_json(body)
        if query.get("validate_only") == "true":
            job = Job(id="", spec=spec, state=JobState.QUEUED, created_at=BIRTH)
            return 200, JobPreview(**dict(job), plan=preview_plan(job, BIRTH))
        self.submitted.append(spec)
        return 201, self.add_job(f"new-{len(self.submitted)}", spec=spec)

    def _list(self, query: dict[str, list[str]]) -> JobPage:
        self.asked_jobs.append(query)
        wanted = JobQuery.model_validate(
            {name: words if name in {"state", "label"} else words[0] for name, words in query.items()}
        )
        newest_first = sorted(self.jobs.values(), key=lambda job: job.created_at, reverse=True)
        found = [job for job in newest_first if _fits(job, wanted)]
        first = int(wanted.cursor or 0)
        end = first + min(wanted.limit, self.page_of)
        return JobPage(items=tuple(found[first:end]), next_cursor=str(end) if len(found) > end else None)

    def _answer_about(self, job_id: str, what: str, after: int) -> tuple[int, Any]:
        if what == "":
            if life := self.lives.get(job_id):
                self.jobs[job_id] = self.jobs[job_id].model_copy(update={"state": life.pop(0)})
            return 200, self.jobs[job_id]
        if what == "events":
            events = tuple(event for event in self.events.get(job_id, ()) if event.seq > after)
            return 200, EventPage(items=events, next_after=max([after, *(event.seq for event in events)]))
        if what == "logs":
            chunks = tuple(chunk for chunk in self.logs.get(job_id, ()) if chunk.seq > after)
            return 200, LogPage(items=chunks, next_after=max([after, *(chunk.seq for chunk in chunks)]))
        if what == "history":
            return 200, self.history
        if what == "advice" and self.advice:
            return 200, self.advice
        if what == "strategy":
            return 200, b"{}"
        return 409, {"code": "advice_not_ready", "detail": "The job is not finished.", "hint": "Wait for it."}


def _fits(job: Job, wanted: JobQuery) -> bool:
    def is_or_begins(text: str, pattern: str | None) -> bool:
        if pattern is not None and pattern.endswith("*"):
            return text.startswith(pattern[:-1])
        return pattern in {None, text}

    return (
        (not wanted.state or job.state in wanted.state)
        and is_or_begins(job.id, wanted.id)
        and is_or_begins(job.spec.name, wanted.name)
        and (wanted.archived or job.archived_at is None)
    )


@contextmanager
def serve_fake(fake: FakeServer) -> Iterator[FakeServer]:
    """Let `fake` answer on a free port."""

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if fake.drops > 0:
                fake.drops -= 1
                self.connection.close()
                return
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._reply(401, {"code": "not_authenticated", "detail": "The token is not known."})
                return
            path, asked = url.path.removeprefix("/api/v1"), parse_qs(url.query)
            self._reply(*fake.answer(self.command, path, asked, body))

        do_POST = do_DELETE = do_GET

        def _reply(self, status: int, body: Any) -> None:
            if isinstance(body, bytes):
                content = body
            elif isinstance(body, BaseModel):
                content = body.model_dump_json().encode()
            else:
                content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
