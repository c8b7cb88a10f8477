"""What is tried again, what is not, and how long is waited."""

import httpx
import pytest

from advisor.protocol.measured.messages import Beat, MemberState, NextRequest, RegisterAgent
from advisor.protocol.nodes.cluster import Node
from agent.client import ServerClient
from agent.errors import (
    NotTheServer,
    NotWelcome,
    ServerFailed,
    ServerRefused,
    ServerUnreachable,
    StaleSession,
)

REGISTRATION = RegisterAgent(name="a", node=Node(hostname="h", cpu_count=1, memory_bytes=1), secret="its own")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now_s = 0.0

    def sleep(self, seconds):
        self.now_s += seconds

    def read(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def _connect(clock, *answers):
    """A client whose server gives these answers: a status, a Response, or an exception."""
    left = list(answers)
    seen = []

    def answer(request):
        seen.append(request)
        given = left.pop(0)
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, httpx.Response) else httpx.Response(given)

    client = ServerClient(
        "http://server", "secret", transport=httpx.MockTransport(answer), clock=clock.read, sleep=clock.sleep,
        uniform=lambda low, high: high,
    )  # fmt: skip
    return client, seen


def _registered():
    return httpx.Response(200, json={"agent_id": "7", "beat_s": 3, "from_a_newer_server": True})


@pytest.mark.parametrize(
    "trouble", [408, 425, 429, 500, 502, 503, 504, httpx.ConnectError("x"), httpx.ReadTimeout("x")]
)
def test_passing_trouble_is_tried_again(clock, trouble):
    client, seen = _connect(clock, trouble, trouble, _registered())
    assert client.register(REGISTRATION, lambda: False).agent_id == "7"
    assert clock.now_s == pytest.approx(0.5 + 1.0)
    assert seen[0].headers["Authorization"] == "Bearer secret"
    assert seen[0].url.path == "/api/v1/agents"


def test_delays_stop_growing(clock):
    client, _ = _connect(clock, *[503] * 10, _registered())
    client.register(REGISTRATION, lambda: False)
    assert clock.now_s == pytest.approx(0.5 + 1 + 2 + 4 + 8 + 16 + 4 * 30)


def test_retry_after_is_honoured(clock):
    client, _ = _connect(clock, httpx.Response(429, headers={"Retry-After": "7"}), _registered())
    client.register(REGISTRATION, lambda: False)
    assert clock.now_s == pytest.approx(7)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, ServerRefused), (409, StaleSession), (410, StaleSession), (404, ServerRefused), (422, ServerRefused),
     (401, NotWelcome), (403, NotWelcome), (426, NotWelcome)],
)  # fmt: skip
def test_refusal_is_final(clock, status, error):
    problem = {"type": "urn:fleet-advisor:problem:some_code", "detail": "It is so.", "hint": "Do that."}
    client, seen = _connect(clock, httpx.Response(status, json=problem))
    with pytest.raises(error, match=r"It is so\. Do that\.") as caught:
        client.next_race("s", NextRequest(generation=1), lambda: False)
    assert type(caught.value) is error
    assert caught.value.code == "some_code"
    assert len(seen) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 409, 410, 413, 426])
@pytest.mark.parametrize("body", [{}, {"code": "unauthenticated", "message": "no"}, "<h1>nginx</h1>"])
def test_refusal_of_a_proxy_says_nothing_about_session_or_agent(clock, status, body):
    client, _ = _connect(clock, httpx.Response(status, json=body))
    with pytest.raises(ServerRefused) as caught:
        client.next_race("s", NextRequest(generation=1), lambda: False)
    assert type(caught.value) is ServerRefused
    assert caught.value.code == ""


def test_conflict_outside_of_a_session_is_no_stale_session(clock):
    client, _ = _connect(clock, 409)
    with pytest.raises(ServerRefused) as caught:
        client.register(REGISTRATION, lambda: False)
    assert not isinstance(caught.value, StaleSession)


def test_caller_who_gives_up_is_not_kept_waiting(clock):
    client, _ = _connect(clock, *[503] * 100)
    with pytest.raises(ServerUnreachable, match="it answered 503"):
        client.register(REGISTRATION, lambda: clock.now_s > 20)
    assert clock.now_s < 21


def test_beat_is_tried_once(clock):
    client, seen = _connect(clock, 503)
    with pytest.raises(ServerUnreachable):
        client.beat("s", Beat(generation=1, state=MemberState.READY), timeout_s=1)
    assert len(seen) == 1


def test_foreign_answer_is_explained(clock):
    client, _ = _connect(clock, httpx.Response(200, html="<h1>Welcome to nginx</h1>"))
    with pytest.raises(NotTheServer, match="Check --server"):
        client.register(REGISTRATION, lambda: False)


def test_own_token_replaces_the_one_to_register_with(clock):
    registered = httpx.Response(200, json={"agent_id": "7", "token": "own"})
    client, seen = _connect(clock, registered, httpx.Response(200, json={}), registered)
    client.register(REGISTRATION, lambda: False)
    client.poll("7", 1, lambda: False)
    client.register(REGISTRATION, lambda: False)
    assert [request.headers["Authorization"] for request in seen] == [
        "Bearer secret",
        "Bearer own",
        "Bearer secret",
    ]


def test_report_is_accepted_only_by_the_server_itself(clock):
    accepted = httpx.Response(200, json={"race_id": "b1", "sentence": "Race 0 counts."})
    client, _ = _connect(clock, accepted, accepted, httpx.Response(200, html="<h1>Log in</h1>"))
    client.report_race("s", "b1", b"{}", lambda: False)
    with pytest.raises(NotTheServer, match="names race b1"):
        client.report_race("s", "b2", b"{}", lambda: False)
    with pytest.raises(NotTheServer):
        client.report_race("s", "b1", b"{}", lambda: False)


def test_report_that_the_server_always_fails_at_is_given_up(clock):
    client, seen = _connect(clock, *[500] * 100)
    with pytest.raises(ServerFailed, match="it answered 500"):
        client.report_race("s", "b1", b"{}", lambda: False)
    assert len(seen) == 6


def test_report_waits_for_a_server_that_is_away(clock):
    accepted = httpx.Response(200, json={"race_id": "b1", "sentence": "Race 0 counts."})
    client, seen = _connect(clock, *[503] * 20, accepted)
    client.report_race("s", "b1", b"{}", lambda: False)
    assert len(seen) == 21
