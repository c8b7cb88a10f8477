"""Two servers on one PostgreSQL over HTTP: what the one that stands by answers, and that it takes over."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.protocol.asked.jobs import JobState
from tests.integration.server.served import FakeAgent, Served, start_gang, wait_for
from tests.integration.server.test_metrics import of, read


@pytest.fixture
def pair(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    """The active server, and one that stands by."""
    first = Served(tmp_path / "first", database_url=postgres_url)
    (tmp_path / "second").mkdir()
    for name in ("admin-token", "agent-token"):
        shutil.copy(tmp_path / "first" / name, tmp_path / "second")
    second = Served(tmp_path / "second", database_url=postgres_url)
    yield first, second
    second.stop()
    first.stop()


def test_server_that_stands_by_answers_that_it_does_and_nothing_else(pair: tuple[Served, Served]) -> None:
    active, standby = pair
    job = active.submit()
    for reply in (
        standby.http.get("/readyz"),
        standby.http.get("/"),
        standby.ask("GET", f"/jobs/{job.id}"),
        standby.ask("POST", f"/jobs/{job.id}:cancel"),
        standby.ask("GET", "/jobs", token=""),
    ):
        assert (reply.status_code, reply.json()["code"]) == (503, "standby")
        assert "another one is active" in reply.json()["detail"]
        assert reply.headers["Retry-After"]
    assert standby.http.get("/livez").status_code == 200
    assert read(standby)[of("active")] == 0.0
    assert read(active)[of("active")] == 1.0
    assert active.job(job.id).state is not JobState.CANCELLED


def test_server_that_takes_over_goes_on_with_a_session_that_is_under_way(pair: tuple[Served, Served]) -> None:
    first, second = pair
    agent = FakeAgent(first, "one")
    job = first.submit()
    start_gang(agent)
    agent.hello()
    race = agent.next()["race"]
    first.stop()
    wait_for(lambda: second.http.get("/readyz").is_success or None, "the second one takes over")
    agent.moved_to(second)
    assert agent.beat()["state"] == "running"
    assert agent.next()["race"] == race, "the same race"
    assert agent.report(race).status_code == 200
    agent.measure_all()
    assert agent.end().status_code == 204
    second.await_state(job.id, JobState.FINISHED)
