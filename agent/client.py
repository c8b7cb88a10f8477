"""Talks to the server: one method per message, retried where repeating can help.

Every message can be repeated without harm, so connection errors, 408, 425, 429 and 5xx are tried again: with full
jitter up to 30 s, or after what Retry-After asks for. Any other answer is final. What a proxy on the way refuses has no
code: only a problem document of Fleet Advisor's own says something about a session, a token or a report.
"""

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
import structlog
from pydantic import BaseModel

from advisor.protocol.knobs.reach import refuse_unknown_knobs
from advisor.protocol.measured.messages import (
    AgentRegistered,
    Assignment,
    Beat,
    BeatReply,
    HelloReport,
    NextReply,
    NextRequest,
    PlaceReply,
    PollReply,
    RegisterAgent,
    SessionEnd,
)
from advisor.protocol.reading import Unreadable, read_document
from advisor.protocol.views import RaceAccepted
from agent.errors import (
    NotCounted,
    NotTheServer,
    NotWelcome,
    ServerFailed,
    ServerRefused,
    ServerUnreachable,
    StaleSession,
    UnknownAssignment,
)

_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 30.0
_LONGEST_RETRY_AFTER_S = 300.0
_TIMEOUT_S = 15.0
_MOST_FAILURES = 6
"""Answers of 500 to one report after which it has to wait: 15 s on the average."""
_AWAY = frozenset({408, 425, 429, 502, 503, 504})
"""Answers of a server that is away or busy; another 5xx is about the request itself."""
QUARANTINED = frozenset({"result_quarantined", "result_differs"})
"""Codes of a report that the server keeps and does not count; they say nothing about the session."""
_OURS = "urn:fleet-advisor:problem:"
"""What the type of our own problem documents begins with."""

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)
GivenUp = Callable[[], bool]


class _TryAgain(Exception):
    def __init__(self, because: str, after_s: float | None = None, *, failed: bool = False) -> None:
        super().__init__(because)
        self.after_s = after_s
        self.failed = failed
        """The server is there, and failed at this very request."""


class ServerClient:
    """The server as the agent sees it; may be used by several threads."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._url = base_url
        self._registration_token = self._token = token
        # Reading every certificate of the system takes a while, and plain HTTP needs none.
        self._http = httpx.Client(
            base_url=f"{base_url}/api/v1",
            transport=transport,
            timeout=_TIMEOUT_S,
            verify=not base_url.startswith("http:"),
        )
        self._clock, self._sleep, self._uniform = clock, sleep, uniform

    def use_token(self, token: str) -> None:
        """Register with another token from now on: a server's first start writes one."""
        self._registration_token = self._token = token

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def register(self, message: RegisterAgent, given_up: GivenUp) -> AgentRegistered:
        """Introduce this agent; every later call carries the token that it is given here.

        Raises NotWelcome when the registration token or the protocol's version is refused.
        """
        self._token = self._registration_token
        registered = self._parse(self._send("/agents", message, given_up), AgentRegistered)
        self._token = registered.token or self._registration_token
        return registered

    def poll(self, agent_id: str, held_s: float, given_up: GivenUp) -> PollReply:
        """Wait up to `held_s` seconds for an assignment.

        Raises UnknownAssignment for one that this release does not understand, though it can say whose place it is.
        """
        content = self._send(f"/agents/{agent_id}/poll", None, given_up, held_s + _TIMEOUT_S)
        try:
            reply = read_document(PollReply, content)
            if reply.assignment is not None:
                _refuse_unknown(reply.assignment)
        except ValueError as error:
            place = self._parse(content, PlaceReply).assignment
            if place is None:
                raise NotTheServer(f"The answer of {self._url} to a poll makes no sense: {error}.") from error
            raise UnknownAssignment(place.session_id, place.generation, str(error)) from error
        return reply

    def beat(self, session_id: str, message: Beat, timeout_s: float) -> BeatReply:
        """Renew the session once: the next beat is the retry."""
        return self._parse(
            self._send(f"/sessions/{session_id}/beat", message, lambda: True, timeout_s), BeatReply
        )

    def hello(self, session_id: str, message: HelloReport, given_up: GivenUp) -> None:
        """Pass on the runtime's first words."""
        self._send(f"/sessions/{session_id}/hello", message, given_up)

    def next_race(self, session_id: str, message: NextRequest, given_up: GivenUp) -> NextReply:
        """Ask what is to be measured now. The server may think for a while."""
        return self._parse(self._send(f"/sessions/{session_id}/next", message, given_up, 120.0), NextReply)

    def report_race(self, session_id: str, race_id: str, body: bytes, given_up: GivenUp) -> None:
        """Hand in a race report exactly as it was spooled; returns once the server says that it was accepted.

        Raises ServerFailed when the server fails at it again and again: no report is to stop everything else.
        """
        path = f"/sessions/{session_id}/races/{race_id}"
        accepted = self._parse(self._send(path, body, given_up, most_failures=_MOST_FAILURES), RaceAccepted)
        if accepted.race_id != race_id:
            raise NotTheServer(f"The answer of {self._url} to race {race_id} names race {accepted.race_id}.")

    def end(self, session_id: str, message: SessionEnd, given_up: GivenUp) -> None:
        """Say that every rank of this node is gone."""
        self._send(f"/sessions/{session_id}/end", message, given_up)

    def _send(
        self,
        path: str,
        message: BaseModel | bytes | None,
        given_up: GivenUp,
        timeout_s: float = _TIMEOUT_S,
        *,
        most_failures: float = math.inf,
    ) -> bytes:
        body = message.model_dump_json().encode() if isinstance(message, BaseModel) else message
        ceiling_s, failures = _FIRST_DELAY_S, 0
        while True:
            try:
                return self._send_once(path, body, timeout_s)
            except _TryAgain as failure:
                failures += failure.failed
                if given_up() or failures >= most_failures:
                    what = f"The server at {self._url} is not available: {failure}."
                    raise (ServerFailed(what) if failure.failed else ServerUnreachable(what)) from failure
                if ceiling_s == _FIRST_DELAY_S:
                    log.warning(
                        "The server is not available; trying again.", url=self._url, because=str(failure)
                    )
                delay_s = failure.after_s if failure.after_s is not None else self._uniform(0, ceiling_s)
                ceiling_s = min(2 * ceiling_s, _LONGEST_DELAY_S)
                self._pause(delay_s, given_up)

    def _send_once(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            reply = self._http.post(path, content=body, headers=headers, timeout=timeout_s)
        except httpx.TransportError as error:
            raise _TryAgain(str(error) or type(error).__name__) from error
        status = reply.status_code
        if status in _AWAY or status >= 500:
            failed = status not in _AWAY
            raise _TryAgain(f"it answered {status}", _read_retry_after(reply), failed=failed)
        if not reply.is_success:
            raise _describe_refusal(reply, self._url)
        return reply.content

    def _parse(self, content: bytes, answer: type[Answer]) -> Answer:
        try:
            return read_document(answer, content)
        except Unreadable as error:
            raise NotTheServer(
                f"The answer of {self._url} is not Fleet Advisor's ({error}). Check --server, and that agent and "
                "server have matching versions."
            ) from error

    def _pause(self, delay_s: float, given_up: GivenUp) -> None:
        """Sleep in short slices, so that a session's end is not slept through."""
        end = self._clock() + delay_s
        while (left_s := end - self._clock()) > 0 and not given_up():
            self._sleep(min(0.2, left_s))


def _refuse_unknown(assignment: Assignment) -> None:
    """Raise ValueError for what is of the right form, and yet means nothing to this release."""
    refuse_unknown_knobs(assignment.workload, assignment.cold)


def _read_retry_after(reply: httpx.Response) -> float | None:
    try:
        seconds = float(reply.headers.get("Retry-After", ""))
    except ValueError:
        return None
    return min(max(0.0, seconds), _LONGEST_RETRY_AFTER_S)


def _describe_refusal(reply: httpx.Response, url: str) -> ServerRefused:
    try:
        problem = reply.json()
    except ValueError:
        problem = None
    problem = problem if isinstance(problem, dict) else {}
    status, code = reply.status_code, str(problem.get("type", ""))
    code = code.removeprefix(_OURS) if code.startswith(_OURS) else ""
    detail = str(
        problem.get("detail")
        or problem.get("title")
        or f"{url} answered {status} to {reply.request.url.path}."
    )
    hint = str(problem.get("hint") or "")
    if code and status in {401, 403, 426}:
        hint = hint or "Give the agent a valid token (--token-file) and the server's version."
        return NotWelcome(status, code, detail, hint)
    if code in QUARANTINED:
        return NotCounted(status, code, detail, hint)
    if code and status in {409, 410} and "/sessions/" in reply.request.url.path:
        return StaleSession(status, code, detail, hint)
    return ServerRefused(status, code, detail, hint)
