"""The user's side of the HTTP API: one method per thing that a person can ask the server for.

Covers what the command line needs. Not the agents' messages: those are in `agent.client`.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from advisor.protocol.advice import Advice, Forecast
from advisor.protocol.jobs import Continuation, Job, JobSpec
from advisor.protocol.reading import read_document
from advisor.protocol.telemetry import TelemetryPoint
from advisor.protocol.trials import JobHistory
from advisor.protocol.views import (
    AgentPage,
    AgentView,
    CreatedToken,
    EventPage,
    JobPage,
    LogPage,
    NewToken,
    TokenPage,
    TokenRotation,
    TokenView,
)
from advisor.protocol.workload import WITH_SECRETS

_FILE_NAME = "filename="


class ServerUnreachable(Exception):
    """No answer came from the server: it is not running, the address is wrong, or the network is down."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"No answer from the server at {url}: {reason}.")
        self.url = url


class ApiProblem(Exception):
    """The server answered that it cannot do what was asked (RFC 9457 problem document)."""

    def __init__(self, status: int, code: str, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint


@dataclass(frozen=True)
class ExportedFile:
    """An exported strategy: a text file, or a zip for the formats of several files."""

    name: str
    content: bytes


class Client:
    """A connection to one server; close it, or use it in a `with`.

    Every method raises `ServerUnreachable` or `ApiProblem`.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Reading every certificate of the system takes a while, and plain HTTP needs none.
        verify = not self.url.startswith("http:")
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, transport=transport, verify=verify
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def is_ready(self) -> bool:
        """Return whether the server answers and can serve requests."""
        try:
            return self._http.get("/readyz", timeout=3.0).is_success
        except httpx.HTTPError:
            return False

    def validate_job(self, spec: JobSpec) -> None:
        """Have the server check `spec` without storing anything."""
        body = spec.model_dump(mode="json", context=WITH_SECRETS)
        self._send("POST", "/jobs", params={"validate_only": "true"}, json=body)

    def submit_job(self, spec: JobSpec, idempotency_key: str) -> Job:
        """Submit `spec`; repeating it with the same key gives the same job."""
        headers = {"Idempotency-Key": idempotency_key}
        body = spec.model_dump(mode="json", context=WITH_SECRETS)
        reply = self._send("POST", "/jobs", json=body, headers=headers)
        return read_document(Job, reply.content)

    def list_jobs(self, state: str | None = None, limit: int = 50, cursor: str | None = None) -> JobPage:
        """Return a page of jobs, newest first."""
        return read_document(
            JobPage,
            self._send("GET", "/jobs", params=_given(state=state, limit=limit, cursor=cursor)).content,
        )

    def job(self, job_id: str) -> Job:
        """Return one job by its full id."""
        return read_document(Job, self._send("GET", f"/jobs/{job_id}").content)

    def cancel_job(self, job_id: str) -> Job:
        """Ask for a job to be cancelled."""
        return read_document(Job, self._send("POST", f"/jobs/{job_id}:cancel").content)

    def continue_job(self, job_id: str, more: Continuation, idempotency_key: str) -> Job:
        """Give a job that has ended more budget; repeating it with the same key gives it once."""
        headers = {"Idempotency-Key": idempotency_key}
        body = more.model_dump(mode="json")
        return read_document(
            Job, self._send("POST", f"/jobs/{job_id}/continue", json=body, headers=headers).content
        )

    def history(self, job_id: str) -> JobHistory:
        """Return everything measured for a job so far."""
        return read_document(JobHistory, self._send("GET", f"/jobs/{job_id}/history").content)

    def telemetry(self, job_id: str, limit: int = 10_000) -> tuple[TelemetryPoint, ...]:
        """Return samples of the job's latest session, evenly thinned out to at most `limit`."""
        reply = self._send("GET", f"/jobs/{job_id}/telemetry", params={"limit": limit})
        return read_document(tuple[TelemetryPoint, ...], reply.content)

    def events(self, job_id: str, after: int) -> EventPage:
        """Return the job's events after sequence number `after`."""
        return read_document(
            EventPage, self._send("GET", f"/jobs/{job_id}/events", params={"after": after}).content
        )

    def logs(self, job_id: str, after: int) -> LogPage:
        """Return what the training processes wrote after sequence number `after`."""
        return read_document(
            LogPage, self._send("GET", f"/jobs/{job_id}/logs", params={"after": after}).content
        )

    def advice(self, job_id: str) -> Advice:
        """Return the advice; an `ApiProblem` with code `advice_not_ready` while there is none."""
        return read_document(Advice, self._send("GET", f"/jobs/{job_id}/advice").content)

    def forecast(
        self, job_id: str, nodes: int | None = None, rate: str | None = None, batch: float | None = None
    ) -> Forecast:
        """Return what the cost model expects on `nodes` nodes, links of `rate` (`25gbit`), `batch` times the batch."""
        params = _given(nodes=nodes, rate=rate, batch=batch)
        reply = self._send("GET", f"/jobs/{job_id}/forecast", params=params)
        return read_document(Forecast, reply.content)

    def export_strategy(self, job_id: str, name: str, target: str | None = None) -> ExportedFile:
        """Return the advised strategy in format `name`, for version `target` of the tool that reads it."""
        params = _given(format=name, target=target, download=1)
        reply = self._send("GET", f"/jobs/{job_id}/strategy", params=params)
        return ExportedFile(_file_name(reply, default=f"strategy-{name}"), reply.content)

    def agents(self) -> tuple[AgentView, ...]:
        """Return the agents that the server knows."""
        return read_document(AgentPage, self._send("GET", "/agents").content).items

    def create_token(self, wanted: NewToken) -> CreatedToken:
        """Create a token; its secret is in this answer only."""
        reply = self._send("POST", "/tokens", json=wanted.model_dump(mode="json"))
        return read_document(CreatedToken, reply.content)

    def rotate_token(self, token_id: str, wanted: TokenRotation) -> CreatedToken:
        """Make a token that takes the place of one that soon ends; its secret is in this answer only."""
        reply = self._send("POST", f"/tokens/{token_id}:rotate", json=wanted.model_dump(mode="json"))
        return read_document(CreatedToken, reply.content)

    def readmit_agent(self, agent_id: str) -> None:
        """Let an agent register again that was turned out."""
        self._send("POST", f"/agents/{agent_id}:readmit")

    def tokens(self) -> tuple[TokenView, ...]:
        """Return all tokens without their secrets."""
        return read_document(TokenPage, self._send("GET", "/tokens").content).items

    def revoke_token(self, token_id: str) -> None:
        """Make a token useless."""
        self._send("DELETE", f"/tokens/{token_id}")

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            reply = self._http.request(method, f"/api/v1{path}", **request)
        except httpx.TimeoutException as error:
            raise ServerUnreachable(self.url, "it did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerUnreachable(self.url, str(error) or type(error).__name__) from error
        if not reply.is_success:
            raise _problem_of(reply)
        return reply


def _given(**params: str | float | None) -> dict[str, str | float]:
    return {name: value for name, value in params.items() if value is not None}


def _file_name(reply: httpx.Response, default: str) -> str:
    disposition = reply.headers.get("content-disposition", "")
    name = disposition.rpartition(_FILE_NAME)[2].strip().strip('"') if _FILE_NAME in disposition else ""
    return name.replace("\\", "/").rpartition("/")[2] or default


def _problem_of(reply: httpx.Response) -> ApiProblem:
    try:
        body = reply.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {}
    code = str(body.get("code") or body.get("type") or f"http_{reply.status_code}")
    detail = body.get("detail") or body.get("title") or f"The server answered {reply.status_code}."
    return ApiProblem(reply.status_code, code, _as_text(detail), _as_text(body.get("hint") or ""))


def _as_text(value: Any) -> str:
    """A sentence from a problem's field; a validation error's field is a list of findings."""
    if not isinstance(value, list):
        return str(value)
    findings = []
    for finding in value:
        where = ".".join(str(part) for part in finding.get("loc", ()) if part != "body")
        findings.append(f"{where}: {finding.get('msg', '')}" if where else str(finding.get("msg", "")))
    return "; ".join(findings)
