"""An administrator removes an agent: its token opens nothing, its name is free, and what it measured still reads."""

import logging

import pytest

from advisor.logs import REQUESTS
from advisor.protocol.asked.jobs import JobState
from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.integration.server.test_identities import refused


def finish_a_job(server: Served, agent: FakeAgent) -> str:
    job = server.submit()
    start_gang(agent)
    agent.hello()
    agent.measure_all()
    assert agent.end().status_code == 204
    server.await_state(job.id, JobState.FINISHED)
    return job.id


def read_all(server: Served, job_id: str) -> dict[str, str]:
    """Every answer and every page about a job that has ended."""
    job = f"/jobs/{job_id}"
    told = {}
    for path in (
        job, f"{job}/history", f"{job}/trials", f"{job}/blocks", f"{job}/sessions", f"{job}/telemetry",
        f"{job}/telemetry/series", f"{job}/events", f"{job}/logs", f"{job}/runs", f"{job}/pareto", f"{job}/advice",
        f"{job}/strategy?format=json", f"{job}/strategy?format=torchrun",
    ):  # fmt: skip
        reply = server.ask("GET", path)
        assert reply.status_code == 200, (path, reply.text[:300])
        told[path] = reply.text
    assert server.http.post("/login", data={"token": server.admin}).status_code == 200
    for path in (job, f"{job}/trials/0", f"{job}/log", f"{job}/export/report", f"{job}/export/bundle"):
        assert server.http.get(path).status_code == 200, path
    return told


def test_removed_agent_is_gone_and_what_it_measured_still_reads(server: Served) -> None:
    agent = FakeAgent(server, "one", secret="its own")
    job_id = finish_a_job(server, agent)
    before = read_all(server, job_id)
    assert '"one"' in before[f"/jobs/{job_id}/sessions"]
    assert server.ask("DELETE", f"/agents/{agent.id}", server.token("submitter")).status_code == 403
    removed = server.ask("DELETE", f"/agents/{agent.id}")
    assert (removed.status_code, removed.content) == (204, b"")
    assert server.ask("GET", "/agents").json()["items"] == []
    assert server.ask("GET", "/agents", params={"name": "one"}).json()["items"] == []
    assert "No agent is known" in server.http.get("/agents").text
    assert read_all(server, job_id) == before
    for path in (f"/agents/{agent.id}:drain", f"/agents/{agent.id}:resume", f"/agents/{agent.id}:readmit"):
        assert refused(server.ask("POST", path, json={})) == (404, "agent_not_found")
    assert refused(server.ask("DELETE", f"/agents/{agent.id}")) == (404, "agent_not_found")
    assert refused(server.ask("DELETE", "/agents/none")) == (404, "agent_not_found")


def test_process_of_a_removed_agent_is_kept_out(server: Served) -> None:
    enrolment = server.token("agent", uses=1)
    first = server.register("one", enrolment, "its own").json()
    assert server.ask("POST", f"/agents/{first['agent_id']}/poll", first["token"]).status_code == 200
    assert server.ask("DELETE", f"/agents/{first['agent_id']}").status_code == 204
    for token in (first["token"], enrolment):
        assert refused(server.register("one", token, "its own")) == (401, "unauthenticated")
    assert refused(server.ask("POST", f"/agents/{first['agent_id']}/poll", first["token"]))[0] == 401
    tokens = [token for token in server.ask("GET", "/tokens").json()["items"] if token["agent"] == "one"]
    assert all(token["revoked_at"] for token in tokens)
    # Somebody else may have the name under a token that lets agents in, and what the other left is no way in.
    assert server.register("one", server.enrolment, "another").status_code == 200
    assert refused(server.register("one", enrolment, "its own")) == (409, "agent_name_taken")
    assert refused(server.ask("POST", f"/agents/{first['agent_id']}/poll", first["token"]))[0] == 401


def test_agent_at_work_is_drained_before_it_is_removed(server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    reply = server.ask("DELETE", f"/agents/{agent.id}")
    assert refused(reply) == (409, "agent_is_busy")
    assert "Drain it first" in reply.json()["hint"]
    assert agent.beat()["state"] == "running"
    assert server.ask("POST", f"/agents/{agent.id}:drain", json={}).status_code == 204
    agent.hello()
    agent.measure_all()
    agent.end()
    server.await_state(job.id, JobState.FINISHED)
    assert server.ask("DELETE", f"/agents/{agent.id}").status_code == 204


def test_removal_is_in_the_log_of_requests(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    agent = FakeAgent(server, "one")
    with caplog.at_level(logging.INFO, REQUESTS):
        server.ask("DELETE", f"/agents/{agent.id}")
    (line,) = [vars(line) for line in caplog.records if vars(line).get("method") == "DELETE"]
    assert (line["route"], line["status"]) == ("/api/v1/agents/{agent_id}", 204)
    assert line["principal"] == "first admin"
