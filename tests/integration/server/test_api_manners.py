"""How the API answers: problem documents for everything that goes wrong, ETags, pages, streams, documentation."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.trials import BlockPage, JobHistory, SessionPage, TrialPage
from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.unit.services.scripted_tuning import ScriptedTuning, make_spec

SPEC: dict[str, Any] = make_spec().model_dump(mode="json")


def with_raw(field: str, raw: str) -> bytes:
    """The specification with a field whose JSON is written by hand."""
    return json.dumps(SPEC | {field: "@"}).replace('"@"', raw).encode()


COMMAND = {"command": ["torchrun", "train.py"]}
HOSTILE = {
    "nan": with_raw("min_gain", "NaN"),
    "infinity": with_raw("min_gain", "Infinity"),
    "minus infinity": with_raw("seed", "-Infinity"),
    "largest float": with_raw("session_timeout_s", "1e308"),
    "overflowing float": with_raw("session_timeout_s", "1e999"),
    "huge integer": with_raw("seed", "9" * 4000),
    "integer beyond Python's digits": with_raw("seed", "9" * 5000),
    "deep nesting": with_raw("budget", "[" * 100_000 + "]" * 100_000),
    "deep object": with_raw("budget", '{"a":' * 50_000 + "1" + "}" * 50_000),
    "wrong types": json.dumps({"workload": 3, "nodes": "many", "knobs": {"a": 1}}).encode(),
    "huge string": with_raw("name", '"' + "x" * 900_000 + '"'),
    "huge command": json.dumps(SPEC | {"workload": {"command": ["x" * 200_000]}}).encode(),
    "unknown field": json.dumps(SPEC | {"surprise": "NaN"}).encode(),
    "lone surrogate": with_raw("name", r'"\ud800"'),
    "nul character": json.dumps(SPEC | {"workload": {"command": ["a\x00b"]}}).encode(),
    "not utf-8": b'{"name": "\xff\xfe"}',
    "not json": b"{",
    "empty": b"",
    "a number": b"1",
    "null": b"null",
    "samples without end": json.dumps(SPEC | {"workload": {**COMMAND, "samples_per_step": "1e999"}}).encode(),
    "too many samples": json.dumps(SPEC | {"workload": {**COMMAND, "samples_per_step": "9" * 299}}).encode(),
    "range without end": json.dumps(
        SPEC | {"workload": {**COMMAND, "own": ["m=1e-320..1e308:log"]}}
    ).encode(),
    "duplicate and wrong": b'{"nodes": 1, "nodes": NaN}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_body_gets_a_problem_and_not_itself(server: Served, body: bytes) -> None:
    reply = server.ask("POST", "/jobs", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= reply.status_code < 500, reply.text[:500]
    problem = assert_problem(reply)
    assert len(reply.content) < 10_000
    assert "NaN" not in json.dumps(problem)
    assert "x" * 100 not in reply.text
    assert server.ask("GET", "/jobs").json()["items"] == []


def test_hostile_beat_gets_a_problem(server: Served) -> None:
    server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    assert agent.place is not None
    path = f"/sessions/{agent.place.session_id}/beat"
    for body in (
        b'{"generation": 1, "state": "running", "telemetry": {"samples": [{"age_s": NaN, "cpu": 1}]}}',
        b'{"generation": 1, "state": "running", "log": "' + b"x" * 70_000 + b'"}',
        b'{"generation": 1e400, "state": "running"}',
        b'{"generation": 1, "state": "running", "steps": 1000000000000000000000000000000}',
        b'{"generation": 1, "state": "dancing"}',
    ):
        reply = server.ask(
            "POST", path, agent.token, content=body, headers={"Content-Type": "application/json"}
        )
        assert reply.status_code == 422
        assert_problem(reply)
    huge = {"generation": 2**63 - 1, "state": "running"}
    assert server.ask("POST", path, agent.token, json=huge).status_code == 409


def test_body_of_more_than_a_mebibyte_is_refused(server: Served) -> None:
    chunks = iter([b" " * 2**19] * 3)
    for content in (b" " * (2**20 + 1), chunks):
        reply = server.ask("POST", "/jobs", content=content, headers={"Content-Type": "application/json"})
        assert reply.status_code == 413
        assert_problem(reply)


def test_validation_names_every_field_with_a_reason(server: Served) -> None:
    body = SPEC | {"nodes": 0, "budget": {"max_trials": 0}, "knobs": ["no_such_knob"]}
    problem = assert_problem(server.ask("POST", "/jobs", json=body))
    assert {finding["field"] for finding in problem["errors"]} == {
        "body.nodes",
        "body.budget.max_trials",
        "body.knobs",
    }
    assert "no such knob" in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/jobs/none", 404, "job_not_found"),
        ("GET", "/jobs/none/events/stream", 404, "job_not_found"),
        ("GET", "/jobs/no%00ne", 404, "job_not_found"),
        ("GET", "/jobs?limit=0", 422, "invalid_request"),
        ("GET", "/jobs?cursor=%C3%BC", 422, "invalid_request"),
        ("GET", f"/jobs?cursor={'A' * 90}", 422, "invalid_request"),
        ("GET", "/jobs?state=dancing", 422, "invalid_request"),
        ("DELETE", "/jobs", 405, "method_not_allowed"),
        ("GET", "/nothing/here", 404, "not_found"),
        ("DELETE", "/tokens/none", 404, "token_not_found"),
    ],
)
def test_errors_are_problems_with_a_code(
    server: Served, method: str, path: str, status: int, code: str
) -> None:
    reply = server.ask(method, path)
    assert (reply.status_code, reply.json().get("code")) == (status, code)
    assert_problem(reply)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/jobs", "GET, POST"),
        ("TRACE", "/knobs", "GET"),
        ("POST", "/jobs/abc", "GET, DELETE"),
        ("OPTIONS", "/jobs/abc:cancel", "POST"),
        ("DELETE", "/sessions/abc/beat", "POST"),
    ],
)
def test_method_that_an_address_does_not_take_gets_those_that_it_takes(
    server: Served, method: str, path: str, allowed: str
) -> None:
    reply = server.ask(method, path)
    assert (reply.status_code, reply.headers["Allow"]) == (405, allowed)
    assert reply.json()["detail"] == f"/api/v1{path} takes {allowed}, not {method}."
    assert server.ask(method, "/nothing").status_code == 404


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_so_do_the_addresses_beside_the_api(server: Served, path: str) -> None:
    for method in ("POST", "TRACE"):
        reply = server.http.request(method, path)
        assert (reply.status_code, reply.headers["Allow"]) == (405, "GET")
        assert_problem(reply)


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_key_of_a_request_has_a_length_that_the_document_names(server: Served, key: str) -> None:
    document = make_spec().model_dump(mode="json")
    reply = server.ask("POST", "/jobs", json=document, headers={"Idempotency-Key": key})
    assert reply.status_code == 422
    assert "idempotency-key" in reply.json()["detail"].lower()


def test_defect_of_the_server_is_told_without_its_inner_workings(start: Callable[..., Served]) -> None:
    class Broken(ScriptedTuning):
        def summarise(self, *_: object) -> Any:
            raise RuntimeError("password=hunter2 in /secret/path")

    server = start(tuning=Broken())
    server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    reply = agent.report(agent.next()["race"])
    assert reply.status_code == 500
    assert assert_problem(reply)["code"] == "internal_error"
    assert "hunter2" not in reply.text
    assert "secret" not in reply.text


def test_advice_that_is_not_ready_says_so(server: Served) -> None:
    job = server.submit()
    reply = server.ask("GET", f"/jobs/{job.id}/advice")
    assert (reply.status_code, reply.json()["code"]) == (409, "advice_not_ready")


def test_etag_stays_until_something_happens(server: Served) -> None:
    job = server.submit()
    first = server.ask("GET", f"/jobs/{job.id}")
    etag = first.headers["etag"]
    assert server.ask("GET", f"/jobs/{job.id}", headers={"If-None-Match": '"other"'}).status_code == 200
    server.ask("POST", f"/jobs/{job.id}:cancel")
    assert server.ask("GET", f"/jobs/{job.id}", headers={"If-None-Match": etag}).status_code == 200
    now = server.ask("GET", f"/jobs/{job.id}").headers["etag"]
    unchanged = server.ask("GET", f"/jobs/{job.id}", headers={"If-None-Match": now})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_jobs_come_in_pages_newest_first(server: Served) -> None:
    made = [server.submit(name=f"job {number}").id for number in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = server.ask("GET", "/jobs", params=params).json()
        seen += [item["id"] for item in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == made[::-1]


def test_validation_alone_stores_nothing(server: Served) -> None:
    reply = server.ask("POST", "/jobs", params={"validate_only": "true"}, json=SPEC)
    assert (reply.status_code, reply.json()["spec"]["name"]) == (200, "train")
    plan = reply.json()["plan"]
    assert "fuse_grad_size_in_MB" in {planned["knob"] for planned in plan["knobs"]}
    assert (plan["most_seconds"], plan["smallest_gain"]) == (SPEC["budget"]["max_seconds"], None)
    assert plan["unknown"]
    assert "plan" not in server.ask("POST", "/jobs", json=SPEC).json()
    assert len(server.ask("GET", "/jobs").json()["items"]) == 1


def test_preview_of_an_invalid_job_names_what_is_wrong(server: Served) -> None:
    wrong = SPEC | {"knobs": ["amp"], "freeze": ["amp"]}
    reply = server.ask("POST", "/jobs", params={"validate_only": "true"}, json=wrong)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_job")
    assert server.ask("GET", "/jobs").json()["items"] == []


def test_job_is_created_with_a_location_and_its_owner(server: Served) -> None:
    token = server.token("submitter")
    reply = server.ask("POST", "/jobs", token, json=SPEC)
    assert reply.headers["location"] == f"/api/v1/jobs/{reply.json()['id']}"
    assert reply.json()["owner"] == "a submitter"


def test_stream_resumes_after_the_last_event_and_ends_with_the_job(server: Served) -> None:
    job = server.submit()
    server.ask("POST", f"/jobs/{job.id}:cancel")
    server.await_state(job.id, JobState.CANCELLED)
    whole = server.ask("GET", f"/jobs/{job.id}/events/stream").text
    listed = server.ask("GET", f"/jobs/{job.id}/events").json()["items"]
    numbers = [line.removeprefix("id: ") for line in whole.splitlines() if line.startswith("id: ")]
    assert numbers == [str(event["seq"]) for event in listed]
    assert "event: end" in whole
    rest = server.ask("GET", f"/jobs/{job.id}/events/stream", headers={"Last-Event-ID": numbers[-2]}).text
    assert [line for line in rest.splitlines() if line.startswith("id: ")] == [f"id: {numbers[-1]}"]


def test_stream_tells_what_happens_while_it_is_open(server: Served) -> None:
    job = server.submit()
    received: list[str] = []

    def listen() -> None:
        received.append(server.ask("GET", f"/jobs/{job.id}/events/stream").text)

    listener = threading.Thread(target=listen)
    listener.start()
    server.ask("POST", f"/jobs/{job.id}:cancel")
    listener.join(timeout=30)
    assert "The job was cancelled." in received[0]


def test_documents_are_served_without_the_network(server: Served) -> None:
    page = server.http.get("/docs")
    assert page.status_code == 200
    assert "cdn" not in page.text
    assert server.http.get("/docs/static/swagger-ui-bundle.js").status_code == 200


def test_health_needs_no_token(server: Served) -> None:
    assert server.http.get("/livez").json() == {"status": "alive"}
    # As some load balancers ask.
    assert [server.http.head(path).status_code for path in ("/livez", "/readyz")] == [200, 200]
    assert server.http.get("/readyz").json() == {"status": "ready"}


def test_models_of_the_answers_are_those_of_the_protocol(server: Served) -> None:
    job = server.submit()
    Job.model_validate(server.ask("GET", f"/jobs/{job.id}").json())
    JobHistory.model_validate(server.ask("GET", f"/jobs/{job.id}/history").json())
    for path, page in (("trials", TrialPage), ("blocks", BlockPage), ("sessions", SessionPage)):
        assert page.model_validate(server.ask("GET", f"/jobs/{job.id}/{path}").json()) == page(items=())
    assert server.ask("GET", f"/jobs/{job.id}/telemetry").json() == []
    assert len(server.ask("GET", "/knobs").json()["items"]) > 10
    assert server.ask("GET", "/export-formats").json()["items"]


def assert_problem(reply: Any) -> dict[str, Any]:
    """Assert that an answer is a whole problem document; return it."""
    assert reply.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = reply.json()
    assert problem["status"] == reply.status_code
    assert problem["type"] == f"urn:fleet-advisor:problem:{problem['code']}"
    assert problem["title"]
    assert problem["detail"].endswith(".")
    return problem
