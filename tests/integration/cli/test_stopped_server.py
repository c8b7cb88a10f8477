"""A server that is stopped and goes on, as on a machine that swaps or is suspended: no session is lost to that."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx

from advisor.local.record import running_server
from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.unit.services.scripted_tuning import make_spec

from .conftest import processes_of
from .test_serve import start_server

STOPPED_S = 6.0
QUICK = {"ADVISOR_LEASE_S": "2", "ADVISOR_GRACE_S": "1", "ADVISOR_TICK_S": "0.1", "ADVISOR_POLL_S": "0.2"}


class Remote:
    """A server in a process of its own, spoken to as `Served` is."""

    def __init__(self, data_dir: Path) -> None:
        record = running_server(data_dir)
        assert record is not None
        self.http = httpx.Client(base_url=f"{record.url}/api/v1", timeout=30)
        self.admin = (data_dir / "admin-token").read_text().strip()
        self.enrolment = (data_dir / "agent-token").read_text().strip()

    def ask(self, method: str, path: str, token: str | None = None, **request: Any) -> httpx.Response:
        """Send a request as the administrator, or with another token."""
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        return self.http.request(method, path, headers=headers, **request)

    register = Served.register


def test_session_outlives_a_server_that_was_stopped_for_longer_than_a_lease(
    data_dir: Path, environment: dict[str, str]
) -> None:
    server = start_server(data_dir, environment | QUICK)
    remote = Remote(data_dir)
    assert remote.ask("POST", "/jobs", json=make_spec().model_dump(mode="json")).status_code == 201
    agent = FakeAgent(remote, "one")  # type: ignore[arg-type]
    start_gang(agent)
    os.kill(server.pid, signal.SIGSTOP)
    # Nothing can be watched while nothing runs: the time itself is the fault.
    threading.Event().wait(STOPPED_S)
    os.kill(server.pid, signal.SIGCONT)
    assert agent.beat()["state"] == "running"
    server.terminate()
    server.communicate(timeout=30)
    assert not processes_of(data_dir)
