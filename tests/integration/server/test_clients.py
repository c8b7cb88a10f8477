"""The typed client against the real server over real sockets, and against one that fails for a moment."""

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from advisor.client import ApiProblem, Client, ServerUnreachable, calls
from advisor.protocol.asked.jobs import JobState
from tests.unit.services.scripted_tuning import make_spec

PATIENCE_S = 30.0


def test_a_job_is_followed_to_its_end_over_streams_that_the_server_closes(served: tuple[str, str]) -> None:
    url, token = served
    with Client(url, token) as client:
        job = client.submit_job(make_spec(name="followed"), "one")
        assert client.submit_job(make_spec(name="followed"), "one").id == job.id
        cancel = threading.Timer(1.2, lambda: client.cancel_job(job.id))
        cancel.start()  # the server closes a stream after half a second: it is opened again
        events = list(client.stream_events(job.id))
        assert [event.seq for event in events] == sorted({event.seq for event in events})
        assert events == list(client.events(job.id, 0).items)
        assert client.job(job.id).state is JobState.CANCELLED
        assert [found.id for found in client.list_jobs().items] == [job.id]
        with pytest.raises(ApiProblem) as refused:
            client.advice(job.id)
        assert (refused.value.status, refused.value.code) == (409, "advice_not_ready")
        with pytest.raises(ApiProblem):
            list(client.stream_events("nosuchjob"))


def test_secrets_of_a_job_are_not_logged_when_its_submission_is_tried_again(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    spec = make_spec()
    secret = {"WANDB_API_KEY": "the-canary"}
    spec = spec.model_copy(update={"workload": spec.workload.model_copy(update={"environment": secret})})
    with Client("http://127.0.0.1:9", "token", patience_s=0.3) as client, pytest.raises(ServerUnreachable):
        client.submit_job(spec, "key")
    said = "".join(capfd.readouterr()) + caplog.text
    assert "retry_scheduled" in said
    assert "the-canary" not in said


def test_the_client_can_ask_everything() -> None:
    asked = {
        name for name, call in vars(calls).items() if callable(call) and call.__module__ == calls.__name__
    }
    asked = {name for name in asked if not name.startswith("_") and name != "Call"}
    assert {name for name in asked if not hasattr(Client, name)} == set()
    assert all(getattr(Client, name).__doc__ for name in asked)


class Moody(httpx.BaseTransport):
    """Fails so often before it answers."""

    def __init__(self, failures: list[Callable[[], httpx.Response]]) -> None:
        self.failures, self.asked = failures, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if self.failures:
            return self.failures.pop(0)()
        if request.method == "DELETE":
            return httpx.Response(204)
        return httpx.Response(200, json={"items": [], "next_cursor": None})


def refuse(status: int, **headers: str) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(
        status, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


def break_off() -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize("failure", [refuse(503, retry_after="0"), refuse(429, retry_after="0"), break_off])
def test_what_fails_for_a_moment_is_asked_again(failure: Callable[[], httpx.Response]) -> None:
    transport = Moody([failure, failure])
    with Client("http://advisor.test", "t", transport=transport) as client:
        assert client.list_jobs().items == ()
    assert transport.asked == 3


def test_what_the_server_did_not_even_look_at_is_asked_again_whatever_it_is() -> None:
    transport = Moody([refuse(429, retry_after="0")])
    with Client("http://advisor.test", "t", transport=transport) as client:
        client.delete_job("j")
    assert transport.asked == 2


@pytest.mark.parametrize(
    ("failure", "kind", "ask"),
    [
        (refuse(404), ApiProblem, lambda client: client.list_jobs()),
        (refuse(500), ApiProblem, lambda client: client.list_jobs()),
        (break_off, ServerUnreachable, lambda client: client.create_token(_wanted())),
        (refuse(503, retry_after="0"), ApiProblem, lambda client: client.create_token(_wanted())),
    ],
)
def test_what_is_refused_or_would_be_done_twice_is_not_repeated(
    failure: Callable[[], httpx.Response], kind: type[Exception], ask: Callable[[Client], Any]
) -> None:
    transport = Moody([failure])
    with Client("http://advisor.test", "t", transport=transport) as client, pytest.raises(kind):
        ask(client)
    assert transport.asked == 1


def test_a_client_without_patience_asks_once() -> None:
    transport = Moody([break_off])
    client = Client("http://advisor.test", "t", patience_s=0, transport=transport)
    with client, pytest.raises(ServerUnreachable, match="refused"):
        client.list_jobs()
    assert transport.asked == 1


def _wanted() -> Any:
    from advisor.protocol.views import NewToken

    return NewToken(role="viewer", label="x")


def answer_page(request: httpx.Request) -> httpx.Response:
    """A list of three, one a page."""
    number = int(request.url.params.get("cursor", 0))
    at = "2026-01-01T00:00:00Z"
    if request.url.path.endswith("/tokens"):
        item: dict[str, Any] = {"id": f"t{number}", "role": "viewer", "label": "", "created_at": at}
    else:
        node = {"hostname": "n", "cpu_count": 1, "memory_bytes": 1}
        item = {
            "id": f"t{number}",
            "name": "x",
            "node": node,
            "state": "idle",
            "last_seen_at": at,
            "last_seen_s": 0,
        }
    return httpx.Response(200, json={"items": [item], "next_cursor": str(number + 1) if number < 2 else None})


def test_whole_lists_are_read_page_after_page() -> None:
    with Client("http://one", "t", transport=httpx.MockTransport(answer_page)) as client:
        found = client.agents(), client.tokens()
    for items in found:
        assert [item.id for item in items] == ["t0", "t1", "t2"]
