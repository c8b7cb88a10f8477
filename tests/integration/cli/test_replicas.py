"""Two real servers on one real PostgreSQL, while the one that leads is killed, and stopped beyond its lease."""

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from advisor.app import make_id
from advisor.local.record import free_port
from advisor.protocol.asked.jobs import Budget, JobSpec, JobState
from advisor.protocol.asked.queries import JobQuery
from advisor.protocol.training.workload import Workload
from advisor.storage import Database
from benchmarks.faulty_agent import SIMULATED, Counts, FaultyAgent

from .conftest import environment_on, processes_of, wait_until

QUICK = {
    "ADVISOR_LEADER_S": "4",
    # As long as they usually are, a silent agent and a new leader after it hold a phase up for as long as it may last.
    "ADVISOR_LEASE_S": "12",
    "ADVISOR_RESTART_S": "12",
    "ADVISOR_TICK_S": "0.2",
    "ADVISOR_POLL_S": "2",
    "ADVISOR_LOG_FORMAT": "json",
}


class Replica:
    """`advisor serve` in a process and a data directory of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = environment_on(folder) | QUICK | {"ADVISOR_DATABASE_URL": url}
        with (folder / "log").open("w") as log:
            words = [sys.executable, "-m", "advisor", "serve", "--port", str(self.port)]
            self.process = subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log)
        wait_until(lambda: bool(self.ask()), f"{folder.name} is ready")
        self.name = self.ask()["server"]

    def ask(self) -> dict[str, str]:
        """What /readyz says; nothing when nobody answers."""
        try:
            reply = httpx.get(f"{self.url}/readyz", timeout=5)
        except httpx.HTTPError:
            assert self.process.poll() in {None, -signal.SIGKILL}, (self.folder / "log").read_text()
            return {}
        return dict(reply.json()) if reply.is_success else {}

    @property
    def leads(self) -> bool:
        """Whether it says that it leads."""
        return self.ask().get("leader") == self.name


class Proxy(httpx.BaseTransport):
    """Sends every request to one of the servers, by chance; one that did not answer is left out for a while."""

    def __init__(self, replicas: list[Replica], seed: str) -> None:
        self.replicas, self.chance, self.inner = replicas, random.Random(seed), httpx.HTTPTransport()
        self.left_out: dict[int, int] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on."""
        self.left_out = {port: left - 1 for port, left in self.left_out.items() if left}
        ports = [replica.port for replica in self.replicas]
        port = self.chance.choice([port for port in ports if port not in self.left_out] or ports)
        request.url = request.url.copy_with(port=port)
        try:
            return self.inner.handle_request(request)
        except httpx.TransportError:
            self.left_out[port] = 20
            raise


@pytest.fixture
def replicas(postgres_url: str, tmp_path: Path) -> Iterator[list[Replica]]:
    """Two servers."""
    running = [Replica(tmp_path / "first", postgres_url)]
    wait_until(lambda: running[0].leads, "the first one leads")
    running.append(Replica(tmp_path / "second", postgres_url))
    yield running
    for folder in tmp_path.iterdir():
        for process in processes_of(folder):
            process.kill()


def test_leader_dies_and_another_is_stopped_and_nothing_is_lost_or_counted_twice(
    replicas: list[Replica], postgres_url: str, tmp_path: Path
) -> None:
    counts, over = Counts(), threading.Event()
    folder = replicas[0].folder
    agents = [FaultyAgent(replicas[0].url, folder, f"a{i}", f"r{i}", counts, over, 0.02) for i in range(4)]
    for agent in agents:
        agent.http = httpx.Client(
            base_url="http://127.0.0.1/api/v1", timeout=3, transport=Proxy(replicas, agent.name)
        )
    admin = {"Authorization": f"Bearer {(folder / 'admin-token').read_text().strip()}"}
    workload = Workload(command=("torchrun", "train.py"))
    spec = JobSpec(
        workload=workload, budget=Budget(max_seconds=3600), nodes=SIMULATED.nodes, testbed=SIMULATED
    )

    def measure(goal: int, at: Replica) -> None:
        """Submit jobs at one server, and wait until so many further results are accepted by any."""
        for _ in range(2):
            body = spec.model_dump(mode="json")
            reply = httpx.post(f"{at.url}/api/v1/jobs", json=body, headers=admin, timeout=60)
            assert reply.status_code == 201, reply.text
        goal += count_accepted(counts)
        wait_until(lambda: count_accepted(counts) >= goal, "more races are measured")

    for agent in agents:
        agent.start()
    measure(8, at=replicas[1])

    killed = replicas[0]
    killed.process.kill()
    killed.process.wait()
    wait_until(lambda: replicas[1].leads, "the second one leads")
    measure(8, at=replicas[1])
    replicas[0] = Replica(tmp_path / "third", postgres_url)
    measure(4, at=replicas[0])

    wait_until(lambda: any(replica.leads for replica in replicas), "somebody leads")
    other, stopped = sorted(replicas, key=lambda replica: replica.leads)
    stopped.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: other.leads, "the other one leads")
    measure(8, at=other)
    stopped.process.send_signal(signal.SIGCONT)
    wait_until(lambda: stopped.ask().get("leader") == other.name, "the stopped one follows")
    measure(4, at=stopped)
    over.set()
    for agent in agents:
        agent.join(120)
        assert not agent.is_alive()
    assert "leads no longer" in (stopped.folder / "log").read_text()
    assert counts.unexpected == []
    judge(postgres_url, counts)


def count_accepted(counts: Counts) -> int:
    """Reports that the servers said they had accepted."""
    return sum(report.answer == "accepted" for report in counts.reports)


def judge(url: str, counts: Counts) -> None:
    """Ask the database: every report is where its answer said, once; every rule of `advisor admin check` holds."""
    database = Database(url, make_id)
    with database.read() as work:
        assert work.upkeep.find_damage() == []
        assert work.leaders.seat().epoch >= 3
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
