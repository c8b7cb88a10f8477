"""A connection to one server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, Protocol, Self, TypeVar

import httpx

from advisor.client import calls
from advisor.client.answers import (
    ApiProblem,
    ServerUnreachable,
    choose_wait,
    choose_wait_untouched,
    explain_silence,
    read_problem,
)
from advisor.client.calls import Call
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.reading import read_document
from advisor.protocol.views import AgentView, JobEvent, TokenView

P = ParamSpec("P")
Answer = TypeVar("Answer")
Item = TypeVar("Item", covariant=True)

_READY_TIMEOUT_S = 3.0
_STREAM_SILENCE_S = 60.0
"""Longest time without a sign of life of a stream; the server sends one every 15 seconds."""
_FAILURES = (httpx.HTTPError, httpx.InvalidURL)


class _Page(Protocol[Item]):
    @property
    def items(self) -> tuple[Item, ...]: ...

    @property
    def next_cursor(self) -> str | None: ...


class _Method(Generic[P, Answer]):
    """A call as a method of `Client`: it sends the call and returns the answer."""

    def __init__(self, make: Callable[P, Call[Answer]]) -> None:
        self._make = make

    def __get__(self, client: "Client", kind: object) -> Callable[P, Answer]:
        @wraps(self._make)
        def ask(*args: P.args, **kwargs: P.kwargs) -> Answer:
            return client.send(self._make(*args, **kwargs))

        return ask


class Client:
    """Everything that a person can ask, by one request each. Close it, or use it in a `with`; threads may share it.

    Every method raises `ServerUnreachable` or `ApiProblem`. What fails for a moment (no connection, 429, 503 …) is
    tried again for `patience_s` seconds, after what Retry-After asks for, as far as repeating it does no harm; 0 never
    repeats.
    """

    preview_job = _Method(calls.preview_job)
    submit_job = _Method(calls.submit_job)
    list_jobs = _Method(calls.list_jobs)
    job = _Method(calls.job)
    cancel_job = _Method(calls.cancel_job)
    pause_job = _Method(calls.pause_job)
    resume_job = _Method(calls.resume_job)
    prioritise_job = _Method(calls.prioritise_job)
    repeat_trial = _Method(calls.repeat_trial)
    extend_job = _Method(calls.extend_job)
    archive_job = _Method(calls.archive_job)
    unarchive_job = _Method(calls.unarchive_job)
    clone_job = _Method(calls.clone_job)
    delete_job = _Method(calls.delete_job)
    history_page = _Method(calls.history_page)
    trials = _Method(calls.trials)
    blocks = _Method(calls.blocks)
    sessions = _Method(calls.sessions)
    telemetry = _Method(calls.telemetry)
    events = _Method(calls.events)
    logs = _Method(calls.logs)
    advice = _Method(calls.advice)
    race_answer = _Method(calls.race_answer)
    forecast = _Method(calls.forecast)
    export_strategy = _Method(calls.export_strategy)
    list_agents = _Method(calls.list_agents)
    readmit_agent = _Method(calls.readmit_agent)
    drain_agent = _Method(calls.drain_agent)
    resume_agent = _Method(calls.resume_agent)
    remove_agent = _Method(calls.remove_agent)
    create_token = _Method(calls.create_token)
    rotate_token = _Method(calls.rotate_token)
    list_tokens = _Method(calls.list_tokens)
    revoke_token = _Method(calls.revoke_token)

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._http = httpx.Client(
            transport=transport,
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_s,
            # Reading every certificate of the system takes a while, and plain HTTP needs none.
            verify=not self.url.startswith("http:"),
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
            return self._http.get("/readyz", timeout=_READY_TIMEOUT_S).is_success
        except httpx.HTTPError:
            return False

    def send(self, call: Call[Answer]) -> Answer:
        """Send a call of `advisor.client.calls` and return its answer."""
        if self._patience_s <= 0:
            return self._send_once(call)
        return _patiently(self._patience_s, repeatable=call.repeatable)(self._send_once)(call)

    def agents(self) -> tuple[AgentView, ...]:
        """Return all agents that the server knows, page after page."""
        return self._list_all(self.list_agents)

    def tokens(self) -> tuple[TokenView, ...]:
        """Return all tokens without their secrets, page after page."""
        return self._list_all(self.list_tokens)

    def stream_events(self, job_id: str, after: int = 0) -> Iterator[JobEvent]:
        """Yield a job's events as they happen, from number `after` on, until the job is over.

        A connection that breaks is opened again where it broke, for up to `patience_s` seconds without an answer.
        """
        import httpx_sse

        def connect(stack: ExitStack) -> httpx_sse.EventSource:
            try:
                source = stack.enter_context(
                    httpx_sse.connect_sse(
                        self._http,
                        "GET",
                        f"/api/v1/jobs/{job_id}/events/stream",
                        headers={"Last-Event-ID": str(after)},
                        timeout=httpx.Timeout(30.0, read=_STREAM_SILENCE_S),
                    )
                )
                if not source.response.is_success:
                    source.response.read()
                    raise _refuse(source.response)
            except _FAILURES as error:
                raise _fall_silent(self.url, error) from error
            return source

        while True:
            with ExitStack() as stack, suppress(*_FAILURES):
                for sent in _patiently(self._patience_s)(connect)(stack).iter_sse():
                    if sent.event == "end":
                        return
                    event = read_document(JobEvent, sent.data)
                    after = event.seq
                    yield event

    def history(self, job_id: str) -> JobHistory:
        """Return everything measured for a job so far."""
        pages = [self.history_page(job_id)]
        while cursor := pages[-1].next_cursor:
            pages.append(self.history_page(job_id, cursor=cursor))
        return JobHistory(
            trials=tuple(trial for page in pages for trial in page.trials),
            blocks=tuple(block for page in pages for block in page.blocks),
            sessions=tuple(session for page in pages for session in page.sessions),
            earlier=pages[0].earlier,
        )

    def _list_all(self, list_page: Callable[..., _Page[Item]]) -> tuple[Item, ...]:
        page = list_page()
        found = page.items
        while page.next_cursor:
            page = list_page(cursor=page.next_cursor)
            found += page.items
        return found

    def _send_once(self, call: Call[Answer]) -> Answer:
        try:
            reply = self._http.request(
                call.method, f"/api/v1{call.path}", params=call.params, json=call.body, headers=call.headers
            )
        except _FAILURES as error:
            raise _fall_silent(self.url, error) from error
        if not reply.is_success:
            raise _refuse(reply)
        return call.read(reply)


def _refuse(reply: httpx.Response) -> ApiProblem:
    return read_problem(reply.status_code, reply.headers, reply.content)


def _fall_silent(url: str, error: Exception) -> ServerUnreachable:
    return explain_silence(url, error, late=isinstance(error, httpx.TimeoutException))


def _patiently(
    patience_s: float, *, repeatable: bool = True
) -> Callable[[Callable[P, Answer]], Callable[P, Answer]]:
    import stamina  # it loads a hundred milliseconds of instrumentation

    on = choose_wait if repeatable else choose_wait_untouched
    return stamina.retry(on=on, attempts=None, timeout=max(patience_s, 0.001))
