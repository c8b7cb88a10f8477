"""What Prometheus reads: who may, what it is told, and that neither costs the database much nor names anybody."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from advisor.errors import Unavailable
from advisor.protocol.asked.jobs import JobState
from advisor.services.metrics import FRESH_S, Metrics
from advisor.storage.whole.census import Census
from tests.integration.server.served import FakeAgent, Served, wait_for

CENSUS = Census(jobs={"queued": 3}, agents={}, sessions={}, members={})


def read(server: Served, token: str = "") -> dict[str, float]:
    """Every figure by name and labels, as it stands in the text."""
    reply = server.http.get("/metrics", headers={"Authorization": f"Bearer {token or server.admin}"})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in reply.text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def of(name: str, **labels: str) -> str:
    """A figure's name in the text."""
    said = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"fleet_advisor_{name}" + (f"{{{said}}}" if said else "")


def test_only_who_may_read_jobs_reads_the_metrics(server: Served) -> None:
    agent = FakeAgent(server, "one")
    allowed = [server.token(role) for role in ("viewer", "submitter")]
    for token, status in [
        ("", 401),
        ("adv_viewer_id_guess", 401),
        (agent.token, 403),
        (server.enrolment, 403),
    ]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        assert server.http.get("/metrics", headers=headers).status_code == status
    assert all(read(server, token) for token in allowed)


def test_requests_are_counted_by_template_and_class_and_never_by_address(server: Served) -> None:
    job = server.submit()
    server.ask("GET", f"/jobs/{job.id}")
    server.ask("GET", "/jobs/secret-name")
    server.http.get("/wherever/secret-name")
    server.http.request("BREW", "/livez")
    found = read(server)
    route = "/api/v1/jobs/{job_id}"
    assert found[of("request_seconds_count", method="GET", route=route, status="2xx")] == 1
    assert found[of("request_seconds_count", method="GET", route=route, status="4xx")] == 1
    assert found[of("request_seconds_count", method="GET", route="other", status="4xx")] == 1
    assert any('method="other"' in name for name in found)
    said = "\n".join(found)
    assert "secret-name" not in said
    assert job.id not in said
    assert job.spec.name not in said
    assert found[of("requests_in_progress", method="GET", route=route)] == 0


def test_poll_that_is_held_open_is_seen_waiting(start: Callable[..., Served]) -> None:
    server = start(poll_s=60)
    agent = FakeAgent(server, "one")
    waiting = of("requests_in_progress", method="POST", route="/api/v1/agents/{agent_id}/poll")
    poll = threading.Thread(target=agent.poll, daemon=True)
    poll.start()
    wait_for(lambda: read(server).get(waiting) == 1.0, "the poll is told of")
    server.submit()
    poll.join(timeout=30)
    assert read(server)[waiting] == 0.0


def test_states_of_jobs_agents_sessions_and_leases_are_told(start: Callable[..., Served]) -> None:
    server = start()
    server.submit()
    agent = FakeAgent(server, "one")
    FakeAgent(server, "two")
    agent.take_place()
    found = read(server)
    assert found[of("jobs", state="running")] == 1
    assert found[of("jobs", state="failed")] == 0
    assert found[of("agents", state="busy")] == 1
    assert found[of("agents", state="idle")] == 1
    assert found[of("live_sessions", state="assembling")] == 1
    assert found[of("live_members", state="preparing")] == 1
    assert found[of("live_members", state="running")] == 0
    assert found[of("database_up")] == 1
    assert found[of("database_transaction_seconds_count", kind="write")] > 0
    assert found[of("planner_seconds_count", kind="full")] >= 1
    for keeper in ("reaper", "scheduler", "lobby"):
        assert 0 <= found[of("keeper_age_seconds", keeper=keeper)] < 30
    assert found["process_resident_memory_bytes"] > 1e6
    assert found["process_open_fds"] > 3


def test_reports_are_counted_by_what_became_of_them(server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one")
    agent.take_place()
    agent.beat("ready")
    agent.beat()
    agent.hello()
    race = agent.next()["race"]
    assert agent.report(race).status_code == 200
    late = agent.next()["race"]
    server.ask("POST", f"/jobs/{job.id}:cancel")
    assert agent.report(late).status_code == 409
    found = read(server)
    assert found[of("reports_total", outcome="accepted")] == 1
    assert found[of("reports_total", outcome="quarantined")] == 1
    assert server.job(job.id).state is JobState.CANCELLING


def test_many_who_look_cost_the_database_one_question() -> None:
    now_s, asked = [100.0], []
    metrics = Metrics(lambda: now_s[0])
    metrics.ask_database(lambda: (asked.append(1), CENSUS)[1])
    for _ in range(3):
        assert of("jobs", state="queued").encode() + b" 3.0" in metrics.write()
    assert len(asked) == 1
    now_s[0] += FRESH_S
    metrics.write()
    assert len(asked) == 2


def test_database_that_does_not_answer_is_a_figure_and_no_failure() -> None:
    def look() -> Census:
        raise Unavailable("Away.")

    metrics = Metrics(lambda: 100.0)
    metrics.ask_database(look)
    text = metrics.write().decode()
    assert f"{of('database_up')} 0.0" in text
    assert of("jobs") not in text


@pytest.mark.parametrize("fails", [False, True])
def test_keeper_that_fails_gets_older(fails: bool) -> None:
    now_s = [100.0]
    metrics: Any = Metrics(lambda: now_s[0])
    note = metrics.watch_keeper("reaper")
    now_s[0] += 50
    if not fails:
        note()
    now_s[0] += 7
    assert f"{of('keeper_age_seconds', keeper='reaper')} {57.0 if fails else 7.0}" in metrics.write().decode()
