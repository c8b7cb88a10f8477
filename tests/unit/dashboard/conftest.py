"""A server of pages over a source in memory, and people to look at it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from advisor.dashboard import build_dashboard
from advisor.dashboard.source import Person
from advisor.protocol.views import Role
from tests.samples.job import make_agents, make_finished_story, make_running_story

sys.path.insert(0, str(Path(__file__).parent))
from memory_source import NOW, Clock, MemorySource


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source() -> MemorySource:
    memory = MemorySource()
    memory.people = {
        "adv_admin_1_x": Person("root", Role.ADMIN, token_id="1"),
        "adv_submitter_2_x": Person("ada", Role.SUBMITTER),
        "adv_viewer_3_x": Person("vic", Role.VIEWER),
    }
    running = make_running_story(NOW)
    job = running.job.model_copy(update={"id": "busy"})
    memory.tell(type(running)(job, running.history, None, running.events, running.log))
    memory.tell(make_finished_story(NOW))
    memory.connected = make_agents(NOW)
    return memory


@pytest.fixture
def client(source: MemorySource, clock: Clock) -> Iterator[TestClient]:
    numbers = iter(range(1000))
    app = FastAPI()
    build_dashboard(app, source, clock, lambda: f"secret-{next(numbers)}")
    with TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def sign_in(client: TestClient) -> Callable[[str], TestClient]:
    def enter(token: str) -> TestClient:
        answer = client.post("/login", data={"token": token}, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        return client

    return enter
