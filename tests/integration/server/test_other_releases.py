"""A server over a database that another release wrote to: over HTTP, on the pages, and for agents that poll."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.integration.server.served import FakeAgent, Served, start_gang


def _store(data_dir: Path, job_id: str, spec: dict[str, object]) -> None:
    with sqlite3.connect(data_dir / "advisor.db") as connection:
        connection.execute("UPDATE jobs SET spec = ? WHERE id = ?", (json.dumps(spec), job_id))


def _dump(server: Served, job_id: str) -> dict[str, object]:
    spec: dict[str, object] = server.job(job_id).spec.model_dump(mode="json")
    return spec


def test_job_with_fields_of_a_newer_release_is_served_and_handed_out(server: Served, tmp_path: Path) -> None:
    job = server.submit()
    spec = _dump(server, job.id)
    workload = spec["workload"]
    assert isinstance(workload, dict)
    _store(tmp_path, job.id, {**spec, "urgency": {"class": 1}, "workload": {**workload, "container": "x"}})
    assert [item["id"] for item in server.ask("GET", "/jobs").json()["items"]] == [job.id]
    agent = FakeAgent(server, "one")
    start_gang(agent)
    assert agent.next()["race"] is not None


def test_job_that_makes_no_sense_here_is_told_by_its_own_address_only(server: Served, tmp_path: Path) -> None:
    broken, sound = server.submit(), server.submit()
    spec = _dump(server, broken.id)
    workload = spec["workload"]
    assert isinstance(workload, dict)
    _store(tmp_path, broken.id, {**spec, "workload": {**workload, "kind": "jax"}})
    assert [item["id"] for item in server.ask("GET", "/jobs").json()["items"]] == [sound.id]
    refused = server.ask("GET", f"/jobs/{broken.id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "unreadable_record")
    assert "workload.kind" in refused.json()["detail"]
    start_gang(FakeAgent(server, "one"))
    server.http.post("/login", data={"token": server.admin})
    for page, status in (("/jobs", 200), (f"/jobs/{broken.id}", 409), (f"/jobs/{sound.id}", 200)):
        assert server.http.get(page).status_code == status, page


@pytest.mark.parametrize("pattern", ["(?P<step_time_s>a{1,4294967296})", "(?P<step_time_s>(1+)+)(?=x)"])
def test_pattern_that_is_not_linear_is_refused_over_http(server: Served, pattern: str) -> None:
    workload = {"kind": "command", "command": ["x", "${num_threads}"], "pattern": pattern}
    reply = server.ask("POST", "/jobs", json={"workload": workload})
    assert reply.status_code == 422
    assert "workload.pattern" in reply.json()["errors"][0]["field"]
