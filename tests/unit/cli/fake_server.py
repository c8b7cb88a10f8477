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

from advisor.protocol.advice import Advice, Forecast
from advisor.protocol.jobs import Continuation, Job, JobSpec, JobState
from advisor.protocol.trials import JobHistory
from advisor.protocol.views import EventKind, EventPage, JobEvent, JobPage, LogChunk, LogPage

TOKEN = "adv_admin_t1_secret"
BIRTH = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class FakeServer:
    """Jobs, events and answers of a pretended server. `lives` are states a job goes through, one per look."""

    def __init__(self) -> None:
        self.url = ""
        self.jobs: dict[str, Job] = {}
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
        self.submitted: list[JobSpec] = []
        self.tokens_wanted: list[tuple[str, dict[str, Any]]] = []
        """Path and body of every request that makes a token or readmits an agent."""
        self.agents: list[dict[str, Any]] = []
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

    def add_event(self, job_id: str, sentence: str, kind: EventKind = EventKind.TRIAL) -> None:
        """Add something that happened to a job."""
        events = self.events.setdefault(job_id, [])
        at = BIRTH + timedelta(seconds=65 * (len(events) + 1))
        events.append(JobEvent(seq=len(events) + 1, at=at, kind=kind, sentence=sentence))

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        """Return status and body for a request below /api/v1."""
        if path in self.problems:
            return self.problems[path]
        if path == "/jobs":
            return self._submit(query, body) if method == "POST" else (200, self._list())
        if path == "/agents":
            return 200, {"items": self.agents}
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
        if rest == "continue":
            self.continued[job_id] = Continuation.model_validate_json(body)
            self.jobs[job_id] = self.jobs[job_id].model_copy(update={"state": JobState.QUEUED})
            return 200, self.jobs[job_id]
        if rest == "forecast" and self.forecast:
            self.asked_forecast = self.asked_forecast or query
            return 200, self.forecast
        return self._answer_about(job_id, rest, int(query.get("after", 0)))

    def _submit(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        spec = JobSpec.model_validate_json(body)
        if query.get("validate_only") == "true":
            return 200, {}
        self.submitted.append(spec)
        return 201, self.add_job(f"new-{len(self.submitted)}", spec=spec)

    def _list(self) -> JobPage:
        newest_first = sorted(self.jobs.values(), key=lambda job: job.created_at, reverse=True)
        return JobPage(items=tuple(newest_first))

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
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            self._reply(*fake.answer(self.command, url.path.removeprefix("/api/v1"), query, body))

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
