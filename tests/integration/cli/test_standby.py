"""Two real servers on one real PostgreSQL: the active one is killed, and stopped until the other one takes over."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from advisor.app import make_id
from advisor.local.record import free_port
from advisor.protocol.asked.jobs import Budget, JobSpec, JobState
from advisor.protocol.training.workload import Workload
from advisor.protocol.views import JobQuery
from advisor.storage import Database
from benchmarks.faulty_agent import SIMULATED, Counts, FaultyAgent, Proxy

from .conftest import environment_on, processes_of, wait_until

QUICK = {
    # As long as they usually are, a silent agent and a new server after it hold a phase up for as long as it may last.
    "ADVISOR_LEASE_S": "12",
    "ADVISOR_RESTART_S": "12",
    "ADVISOR_TICK_S": "0.2",
    "ADVISOR_POLL_S": "2",
    "ADVISOR_LOG_FORMAT": "json",
}


class Replica:
    """`advisor serve` in a process and a data directory of its own."""

    def __init__(self, folder: Path, url: str, port: int | None = None) -> None:
        self.folder, self.port = folder, port or free_port()
        folder.mkdir()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = environment_on(folder) | QUICK | {"ADVISOR_DATABASE_URL": url}
        with (folder / "log").open("w") as log:
            words = [sys.executable, "-m", "advisor", "serve", "--port", str(self.port)]
            self.process = subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log)
        wait_until(lambda: bool(self.state), f"{folder.name} answers")

    @property
    def state(self) -> str:
        """`ready` for the active server, `standby` for another one; nothing when nobody answers."""
        try:
            reply = httpx.get(f"{self.url}/readyz", timeout=5)
        except httpx.HTTPError:
            assert self.process.poll() in {None, -signal.SIGKILL}, (self.folder / "log").read_text()
            return ""
        told = reply.json()
        return str(told.get("status") if reply.is_success else told["code"])

    @property
    def is_active(self) -> bool:
        """Whether it serves."""
        return self.state == "ready"


@pytest.fixture
def replicas(postgres_url: str, tmp_path: Path) -> Iterator[list[Replica]]:
    """Two servers."""
    running = [Replica(tmp_path / "first", postgres_url)]
    assert running[0].is_active
    running.append(Replica(tmp_path / "second", postgres_url))
    assert running[1].state == "standby"
    yield running
    for folder in tmp_path.iterdir():
        for process in processes_of(folder):
            process.kill()


def test_active_server_dies_and_the_next_is_stopped_and_nothing_is_lost_or_counted_twice(
    replicas: list[Replica], postgres_url: str, tmp_path: Path
) -> None:
    first, second = replicas
    third_port = free_port()
    proxy_to = [first.port, second.port, third_port]
    counts, over = Counts(), threading.Event()
    agents = [FaultyAgent(first.url, first.folder, f"a{i}", f"r{i}", counts, over, 0.02) for i in range(4)]
    for agent in agents:
        agent.http = make_client(proxy_to)
    admin = {"Authorization": f"Bearer {(first.folder / 'admin-token').read_text().strip()}"}
    workload = Workload(command=("torchrun", "train.py"))
    spec = JobSpec(
        workload=workload, budget=Budget(max_seconds=3600), nodes=SIMULATED.nodes, testbed=SIMULATED
    )

    def measure(goal: int, at: Replica) -> None:
        """Submit jobs, and wait until so many further results are accepted."""
        for _ in range(2):
            body = spec.model_dump(mode="json")
            reply = httpx.post(f"{at.url}/api/v1/jobs", json=body, headers=admin, timeout=60)
            assert reply.status_code == 201, reply.text
        goal += count_accepted(counts)
        wait_until(lambda: count_accepted(counts) >= goal, "more races are measured")

    refused = httpx.get(f"{second.url}/api/v1/jobs", headers=admin)
    assert (refused.status_code, refused.json()["code"]) == (503, "standby")
    for agent in agents:
        agent.start()
    measure(8, at=first)

    first.process.kill()
    first.process.wait()
    wait_until(lambda: second.is_active, "the second one takes over")
    measure(8, at=second)

    third = Replica(tmp_path / "third", postgres_url, third_port)
    assert third.state == "standby"
    second.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: third.is_active, "the third one takes over")
    measure(8, at=third)
    second.process.send_signal(signal.SIGCONT)
    wait_until(lambda: second.state == "standby", "the stopped one stands by")
    measure(4, at=third)
    over.set()
    for agent in agents:
        agent.join(120)
        assert not agent.is_alive()
    assert "is not active any more" in (second.folder / "log").read_text()
    assert counts.unexpected == []
    judge(postgres_url, counts)


def make_client(ports: list[int]) -> httpx.Client:
    """An agent's way to the servers on these ports."""
    return httpx.Client(base_url="http://127.0.0.1/api/v1", timeout=3, transport=Proxy(ports))


def count_accepted(counts: Counts) -> int:
    """Reports that the servers said they had accepted."""
    return sum(report.answer == "accepted" for report in counts.reports)


def judge(url: str, counts: Counts) -> None:
    """Ask the database: every report is where its answer said, once; every rule of `advisor admin check` holds."""
    database = Database(url, make_id)
    with database.read() as work:
        assert work.upkeep.find_damage() == []
        assert work.connection.execute(text("SELECT epoch FROM epoch")).scalar_one() >= 3
        jobs = [job for _, job in work.jobs.page(JobQuery(), 100, None)]
        histories = {job.id: work.blocks.of_job(job.id) for job in jobs}
        kept = {
            block
            for report in counts.reports
            for block in report.body["results"]
            if work.blocks.accepted_sha256(block)
        }
    database.close()
    assert {job.state for job in jobs} <= {JobState.QUEUED, JobState.RUNNING, JobState.FINISHED}
    assert [report for report in counts.reports if not report.answer] == [], "a report is undecided"
    accepted = Counter(
        block for report in counts.reports if report.answer == "accepted" for block in report.body["results"]
    )
    assert set(accepted) <= kept, "a result is lost"
    assert max(accepted.values()) == 1, "a result counts twice"
    for blocks in histories.values():
        # One planner: each race was issued once, in one session, with all its arms.
        places = Counter((block.race, block.arm) for block in blocks)
        assert max(places.values(), default=1) == 1, "two servers issued the same race"
