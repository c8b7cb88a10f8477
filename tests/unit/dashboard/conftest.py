"""Browsers that look at the pages over a database of made-up jobs."""

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from tests.samples.stored import Clock, Stories, share_pages


@pytest.fixture
def clock(stories: Stories) -> Clock:
    return stories.clock


@pytest.fixture
def client(stories: Stories) -> Iterator[TestClient]:
    with TestClient(share_pages(), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def sign_in(client: TestClient) -> Callable[[str], TestClient]:
    def enter(token: str) -> TestClient:
        answer = client.post("/login", data={"token": token}, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        return client

    return enter
