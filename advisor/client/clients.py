"""A connection to one server, for programs that wait and for programs that await."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

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
from advisor.protocol.measured.trials import HistoryPage, JobHistory
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


def _waiting(
    make: Callable[P, Call[Answer]],
) -> Callable[Concatenate["Client", P], Answer]:
    @functools.wraps(make)
    def method(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        return client.send(make(*args, **kwargs))

    return method


def _awaiting(
    make: Callable[P, Call[Answer]],
) -> Callable[Concatenate["AsyncClient", P], Awaitable[Answer]]:
    @functools.wraps(make)
    async def method(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        return await client.send(make(*args, **kwargs))

    return method


def _join(pages: Sequence[HistoryPage]) -> JobHistory:
    return JobHistory(
        trials=tuple(trial for page in pages for trial in page.trials),
        blocks=tuple(block for page in pages for block in page.blocks),
        sessions=tuple(session for page in pages for session in page.sessions),
        earlier=pages[0].earlier,
    )


class Client:
    """Waits for every answer. Close it, or use it in a `with`.

    Every method raises `ServerUnreachable` or `ApiProblem`. What fails for a moment (no connection, 429, 503 …) is
    tried again for `patience_s` seconds, after what Retry-After asks for, as far as repeating it does no harm; 0 never
    repeats.
    """

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
        self._http = httpx.Client(transport=transport, **_describe(self.url, token, timeout_s))

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
            asked = _ask_stream(job_id, after)
            try:
                source = stack.enter_context(httpx_sse.connect_sse(self._http, "GET", **asked))
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
        return _join(pages)

    def _list_all(self, list_page: Callable[..., _Page[Item]]) -> tuple[Item, ...]:
        page = list_page()
        found = page.items
        while page.next_cursor:
            page = list_page(cursor=page.next_cursor)
            found += page.items
        return found

    def _send_once(self, call: Call[Answer]) -> Answer:
        try:
            reply = self._http.request(**_ask(call))
        except _FAILURES as error:
            raise _fall_silent(self.url, error) from error
        if not reply.is_success:
            raise _refuse(reply)
        return call.read(reply)

    preview_job = _waiting(calls.preview_job)
    submit_job = _waiting(calls.submit_job)
    list_jobs = _waiting(calls.list_jobs)
    job = _waiting(calls.job)
    cancel_job = _waiting(calls.cancel_job)
    pause_job = _waiting(calls.pause_job)
    resume_job = _waiting(calls.resume_job)
    prioritise_job = _waiting(calls.prioritise_job)
    repeat_trial = _waiting(calls.repeat_trial)
    extend_job = _waiting(calls.extend_job)
    archive_job = _waiting(calls.archive_job)
    unarchive_job = _waiting(calls.unarchive_job)
    clone_job = _waiting(calls.clone_job)
    delete_job = _waiting(calls.delete_job)
    history_page = _waiting(calls.history_page)
    trials = _waiting(calls.trials)
    blocks = _waiting(calls.blocks)
    sessions = _waiting(calls.sessions)
    telemetry = _waiting(calls.telemetry)
    events = _waiting(calls.events)
    logs = _waiting(calls.logs)
    advice = _waiting(calls.advice)
    forecast = _waiting(calls.forecast)
    export_strategy = _waiting(calls.export_strategy)
    list_agents = _waiting(calls.list_agents)
    readmit_agent = _waiting(calls.readmit_agent)
    drain_agent = _waiting(calls.drain_agent)
    resume_agent = _waiting(calls.resume_agent)
    remove_agent = _waiting(calls.remove_agent)
    create_token = _waiting(calls.create_token)
    rotate_token = _waiting(calls.rotate_token)
    list_tokens = _waiting(calls.list_tokens)
    revoke_token = _waiting(calls.revoke_token)


class AsyncClient:
    """The same for programs with an event loop: every method is awaited. Use it in an `async with`."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._http = httpx.AsyncClient(transport=transport, **_describe(self.url, token, timeout_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, call: Call[Answer]) -> Answer:
        """Send a call of `advisor.client.calls` and return its answer."""
        if self._patience_s <= 0:
            return await self._send_once(call)
        return await _patiently(self._patience_s, repeatable=call.repeatable)(self._send_once)(call)

    async def agents(self) -> tuple[AgentView, ...]:
        """Return all agents that the server knows, page after page."""
        return await self._list_all(self.list_agents)

    async def tokens(self) -> tuple[TokenView, ...]:
        """Return all tokens without their secrets, page after page."""
        return await self._list_all(self.list_tokens)

    async def stream_events(self, job_id: str, after: int = 0) -> AsyncIterator[JobEvent]:
        """Yield a job's events as they happen, from number `after` on, until the job is over."""
        import httpx_sse

        async def connect(stack: AsyncExitStack) -> httpx_sse.EventSource:
            asked = _ask_stream(job_id, after)
            try:
                source = await stack.enter_async_context(httpx_sse.aconnect_sse(self._http, "GET", **asked))
                if not source.response.is_success:
                    await source.response.aread()
                    raise _refuse(source.response)
            except _FAILURES as error:
                raise _fall_silent(self.url, error) from error
            return source

        while True:
            async with AsyncExitStack() as stack:
                with suppress(*_FAILURES):
                    source = await _patiently(self._patience_s)(connect)(stack)
                    async for sent in source.aiter_sse():
                        if sent.event == "end":
                            return
                        event = read_document(JobEvent, sent.data)
                        after = event.seq
                        yield event

    async def history(self, job_id: str) -> JobHistory:
        """Return everything measured for a job so far."""
        pages = [await self.history_page(job_id)]
        while cursor := pages[-1].next_cursor:
            pages.append(await self.history_page(job_id, cursor=cursor))
        return _join(pages)

    async def _list_all(self, list_page: Callable[..., Awaitable[_Page[Item]]]) -> tuple[Item, ...]:
        page = await list_page()
        found = page.items
        while page.next_cursor:
            page = await list_page(cursor=page.next_cursor)
            found += page.items
        return found

    async def _send_once(self, call: Call[Answer]) -> Answer:
        try:
            reply = await self._http.request(**_ask(call))
        except _FAILURES as error:
            raise _fall_silent(self.url, error) from error
        if not reply.is_success:
            raise _refuse(reply)
        return call.read(reply)

    preview_job = _awaiting(calls.preview_job)
    submit_job = _awaiting(calls.submit_job)
    list_jobs = _awaiting(calls.list_jobs)
    job = _awaiting(calls.job)
    cancel_job = _awaiting(calls.cancel_job)
    pause_job = _awaiting(calls.pause_job)
    resume_job = _awaiting(calls.resume_job)
    prioritise_job = _awaiting(calls.prioritise_job)
    repeat_trial = _awaiting(calls.repeat_trial)
    extend_job = _awaiting(calls.extend_job)
    archive_job = _awaiting(calls.archive_job)
    unarchive_job = _awaiting(calls.unarchive_job)
    clone_job = _awaiting(calls.clone_job)
    delete_job = _awaiting(calls.delete_job)
    history_page = _awaiting(calls.history_page)
    trials = _awaiting(calls.trials)
    blocks = _awaiting(calls.blocks)
    sessions = _awaiting(calls.sessions)
    telemetry = _awaiting(calls.telemetry)
    events = _awaiting(calls.events)
    logs = _awaiting(calls.logs)
    advice = _awaiting(calls.advice)
    forecast = _awaiting(calls.forecast)
    export_strategy = _awaiting(calls.export_strategy)
    list_agents = _awaiting(calls.list_agents)
    readmit_agent = _awaiting(calls.readmit_agent)
    drain_agent = _awaiting(calls.drain_agent)
    resume_agent = _awaiting(calls.resume_agent)
    remove_agent = _awaiting(calls.remove_agent)
    create_token = _awaiting(calls.create_token)
    rotate_token = _awaiting(calls.rotate_token)
    list_tokens = _awaiting(calls.list_tokens)
    revoke_token = _awaiting(calls.revoke_token)


def _refuse(reply: httpx.Response) -> ApiProblem:
    return read_problem(reply.status_code, reply.headers, reply.content)


def _fall_silent(url: str, error: Exception) -> ServerUnreachable:
    return explain_silence(url, error, late=isinstance(error, httpx.TimeoutException))


def _describe(url: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "timeout": timeout_s,
        # Reading every certificate of the system takes a while, and plain HTTP needs none.
        "verify": not url.startswith("http:"),
    }


def _ask(call: Call[Any]) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": f"/api/v1{call.path}",
        "params": call.params,
        "json": call.body,
        "headers": call.headers,
    }


def _ask_stream(job_id: str, after: int) -> dict[str, Any]:
    return {
        "url": f"/api/v1/jobs/{job_id}/events/stream",
        "headers": {"Last-Event-ID": str(after)},
        "timeout": httpx.Timeout(30.0, read=_STREAM_SILENCE_S),
    }


def _patiently(
    patience_s: float, *, repeatable: bool = True
) -> Callable[[Callable[P, Answer]], Callable[P, Answer]]:
    import stamina  # it loads a hundred milliseconds of instrumentation

    on = choose_wait if repeatable else choose_wait_untouched
    return stamina.retry(on=on, attempts=None, timeout=max(patience_s, 0.001))
