"""What the log says of requests: one line each, found by an id that the answer carries, and nothing that is secret."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from advisor.client.answers import read_problem
from advisor.logs import REQUESTS, configure_logs
from advisor.protocol.logs import LogFormat
from tests.integration.server.served import FakeAgent, Served


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log as JSON; what it changed of this process is put back."""
    root = logging.getLogger()
    before = root.handlers, root.level
    stream = io.StringIO()
    configure_logs(LogFormat.JSON, stream)
    # The tests' own client.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    yield stream
    root.handlers, root.level = before
    for name in (REQUESTS, "httpx2"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def read(log: io.StringIO, **wanted: Any) -> list[dict[str, Any]]:
    """The log's lines that say all that is wanted."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if wanted.items() <= line.items()]


def test_every_request_is_a_line_with_who_and_what_and_no_secret(log: io.StringIO, server: Served) -> None:
    server.http.get(
        f"/api/v1/jobs?cursor={server.admin}", headers={"Authorization": f"Bearer {server.admin}"}
    )
    server.http.get(f"/nowhere/{server.admin}")
    (line,) = read(log, event="request", route="/api/v1/jobs")
    assert (line["method"], line["status"], line["principal"]) == ("GET", 422, "first admin")
    assert line["seconds"] >= 0
    assert line["timestamp"].endswith("Z")
    assert read(log, event="request", route="other", status=404)
    assert server.admin not in log.getvalue()


def test_lines_say_which_job_session_and_agent_they_are_about(log: io.StringIO, server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one")
    place = agent.take_place()
    agent.beat("ready")
    server.ask("GET", f"/jobs/{job.id}")
    assert read(log, event="request", route="/api/v1/jobs/{job_id}", job_id=job.id)
    assert read(log, event="request", session_id=place.session_id, principal="one")
    assert read(log, event="request", agent_id=agent.id, principal="one")


def test_id_of_a_request_is_taken_over_and_answered(log: io.StringIO, server: Served) -> None:
    reply = server.ask("GET", "/jobs/none", headers={"X-Request-ID": "trace-7.b"})
    assert reply.headers.get_list("X-Request-ID") == ["trace-7.b"]
    assert reply.json()["request_id"] == "trace-7.b"
    assert read(log, event="request", request_id="trace-7.b", status=404)


@pytest.mark.parametrize("given", ["", "a" * 65, "a b", 'x"}', "a\u00e9".encode("latin-1")])
def test_id_that_is_not_well_formed_is_replaced(server: Served, given: str | bytes) -> None:
    reply = server.ask("GET", "/jobs/none", headers={"X-Request-ID": given})
    made = reply.headers["X-Request-ID"]
    assert len(made) == 16
    assert int(made, 16) >= 0
    assert reply.json()["request_id"] == made


def test_refusals_before_any_route_carry_an_id_too(server: Served) -> None:
    wrong_host = server.ask("GET", "/jobs", headers={"Host": "elsewhere"})
    too_large = server.ask("POST", "/jobs", content=b" " * (2**20 + 1))
    for reply, status in ((wrong_host, 421), (too_large, 413)):
        assert reply.status_code == status
        assert reply.json()["request_id"] == reply.headers["X-Request-ID"] != ""


def test_failure_is_found_by_the_id_of_its_answer(log: io.StringIO, start: Callable[..., Served]) -> None:
    server = start()
    server.app.state.context.metrics.write = lambda: 1 / 0
    reply = server.http.get("/metrics", headers={"Authorization": f"Bearer {server.admin}"})
    assert reply.status_code == 500
    request_id = reply.json()["request_id"]
    assert reply.headers.get_list("X-Request-ID") == [request_id]
    told = read_problem(500, {}, reply.content)
    assert told.hint.endswith(f"The server's log has it as request {request_id}.")
    (error,) = read(log, request_id=request_id, level="error")
    assert "ZeroDivisionError" in error["exception"]
    assert read(log, event="request", request_id=request_id, level="warning", status=500)
    assert server.admin not in log.getvalue()


def test_text_for_people_tells_failures_only_and_shows_no_variables(start: Callable[..., Served]) -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    stream = io.StringIO()
    configure_logs(LogFormat.TEXT, stream)
    try:
        server = start()
        server.app.state.context.metrics.write = lambda: 1 / 0
        server.ask("GET", "/jobs")
        server.http.get("/metrics", headers={"Authorization": f"Bearer {server.admin}"})
    finally:
        root.handlers, root.level = before
        logging.getLogger(REQUESTS).setLevel(logging.NOTSET)
    text = stream.getvalue()
    assert "route=/metrics" in text
    assert "route=/api/v1/jobs" not in text
    assert "ZeroDivisionError" in text
    assert server.admin not in text


@pytest.mark.parametrize("chosen", list(LogFormat))
def test_what_others_said_stays_in_its_line(chosen: LogFormat) -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    stream = io.StringIO()
    configure_logs(chosen, stream)
    try:
        logging.getLogger("x").warning("Session lost: %s", "a\n12:00:00 forged\x1b[31m")
    finally:
        root.handlers, root.level = before
        logging.getLogger(REQUESTS).setLevel(logging.NOTSET)
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
