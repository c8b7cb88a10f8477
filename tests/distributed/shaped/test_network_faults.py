"""A real server and a real agent with a network between them that is cut, on both ways or one, or that is slow."""

import ctypes
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from advisor.local.namespaces import NAMESPACES, run_tool
from advisor.local.testbed import TestbedNode, build_testbed
from advisor.protocol.asked.jobs import Budget, JobSpec, Measurement
from advisor.protocol.nodes.testbed import Testbed
from advisor.protocol.training.workload import Workload
from agent.guard.processes import SESSION_MARKER, list_marked
from tests.distributed.agent.killing import TORCH_SCRIPT
from tests.testbed.network import requires_testbed

pytestmark = [
    pytest.mark.testbed, pytest.mark.distributed, pytest.mark.calm, pytest.mark.timeout(280), requires_testbed,
]  # fmt: skip

ROOT = Path(__file__).parents[3]
PORT = 8765
PATIENCE_S = 90
TIMERS = {
    "ADVISOR_LEASE_S": "12", "ADVISOR_GRACE_S": "2", "ADVISOR_TICK_S": "0.2", "ADVISOR_BEAT_S": "0.5",
    "ADVISOR_POLL_S": "2", "ADVISOR_RESTART_S": "12",
}  # fmt: skip
_CLONE_NEWNET = 0x40000000


def wait_for(look: Callable[[], Any], what: str) -> Any:
    """Return the first true value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.05)
    return found


class Wire:
    """A server on the first node, an agent on the second one, and the link between them."""

    def __init__(self, folder: Path, server: TestbedNode, agent: TestbedNode, stack: ExitStack) -> None:
        self.folder, self.server, self.agent = folder, server, agent
        self.switch = server.namespace.replace("node-1", "switch")
        known = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        self.environment = known | {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.inside = stack.enter_context(ThreadPoolExecutor(1, initializer=self._enter_server))
        self._start(stack, server, "server", "-m", "advisor", "serve")
        wait_for(self._is_ready, "the server serves")
        (folder / "project").mkdir()
        (folder / "project" / "train.py").write_text(TORCH_SCRIPT)
        self._start(
            stack, agent, "agent", "-m", "agent", "run", "--server", self.url, "--name", "far",
            "--token-file", str(folder / "data" / "agent-token"), "--work-dir", str(folder / "far"),
            "--allow-root", str(folder / "project"),
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://{self.server.address}:{PORT}"

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Speak to the server as its administrator, beside the link."""
        token = (self.folder / "data" / "admin-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.url}/api/v1{path}"
        return self.inside.submit(httpx.request, method, url, headers=headers, timeout=20, **request).result()

    def submit(self) -> str:
        """Submit a job that really trains; return its id."""
        launch = ("torchrun", "--nproc-per-node", "2", "train.py")
        spec = JobSpec(
            workload=Workload(command=launch, working_dir=str(self.folder / "project")),
            budget=Budget(max_trials=8, max_seconds=3600),
            measurement=Measurement(warmup_steps=1, min_steps=5, max_steps=2000, block_s=0.5),
        )
        reply = self.ask("POST", "/jobs", json=spec.model_dump(mode="json"))
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the database, whatever happens to the network."""
        with sqlite3.connect(f"file:{self.folder / 'data' / 'advisor.db'}?mode=ro", uri=True) as found:
            return found.execute(query).fetchall()

    def session(self) -> tuple[str, str]:
        """The latest session's id and state."""
        return self.rows("SELECT id, state FROM sessions ORDER BY generation DESC LIMIT 1")[0]

    def await_race(self, measured: int) -> None:
        """Wait until so many races were measured, and another one is being run."""
        counted = "SELECT 1 FROM blocks WHERE arm = 0 AND state = 'done'"
        wait_for(lambda: len(self.rows(counted)) >= measured, f"{measured} races are measured")
        wait_for(lambda: self.rows("SELECT 1 FROM blocks WHERE state = 'issued'"), "a race is being run")

    def list_ranks(self, session: str) -> list[int]:
        return list_marked(**{SESSION_MARKER: f"{session}-{self.generation(session)}"})

    def generation(self, session: str) -> int:
        return int(self.rows(f"SELECT generation FROM sessions WHERE id = '{session}'")[0][0])

    def spooled(self) -> list[set[str]]:
        """The blocks of every report that waits on the agent's disk."""
        found = []
        for path in (self.folder / "far" / "spool").glob("*.report"):
            try:
                spooled = json.loads(path.read_bytes()[:-40])
            except FileNotFoundError:
                continue
            found.append(set(json.loads(spooled["body"])["results"]))
        return found

    @contextmanager
    def cut(self, way: str) -> Iterator[None]:
        """Nothing passes: on `both` ways, or no `answers` of the server."""
        if way == "both":
            port = self.agent.namespace.rpartition("-")[2]
            device = ("ip", "-n", self.switch, "link", "set", f"node-{port}")
            run_tool(*device, "down")
            yield
            run_tool(*device, "up")
            return
        route = "blackhole", f"{self.agent.address}/32"
        run_tool("ip", "-n", self.server.namespace, "route", "add", *route)
        yield
        run_tool("ip", "-n", self.server.namespace, "route", "del", *route)

    def _start(self, stack: ExitStack, node: TestbedNode, name: str, *words: str) -> None:
        own = TIMERS | {
            "ADVISOR_HOST": self.server.address, "ADVISOR_PORT": str(PORT),
            "ADVISOR_DATA_DIR": str(self.folder / "data"),
            "ADVISOR_TRUSTED_PROXIES": '["10.77.0.0/24"]', "ADVISOR_ALLOWED_HOSTS": f'["{self.server.address}"]',
        }  # fmt: skip
        environment = self.environment | (own if name == "server" else {})
        log = stack.enter_context((self.folder / f"{name}.log").open("wb"))
        command = [*node.prefix, sys.executable, *words]
        process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)

    def _is_ready(self) -> bool:
        def ask() -> bool:
            try:
                return httpx.get(f"{self.url}/readyz", timeout=5).is_success
            except httpx.HTTPError:
                return False

        return self.inside.submit(ask).result()

    def _enter_server(self) -> None:
        """Let the calling thread speak from the server's node."""
        descriptor = os.open(NAMESPACES / self.server.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            assert ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) == 0
        finally:
            os.close(descriptor)


@contextmanager
def lay_wire(folder: Path, rate: str) -> Iterator[Wire]:
    """A server and an agent with a link of that rate between them."""
    with build_testbed(Testbed(nodes=2, rate=rate)) as (server, agent), ExitStack() as stack:
        wire = Wire(folder, server, agent, stack)
        try:
            yield wire
        except BaseException:
            for name in ("server", "agent"):
                print(name, (folder / f"{name}.log").read_text(errors="replace")[-3000:])
            raise


def kept(wire: Wire, table: str) -> set[str]:
    """The blocks of the reports that the database holds, as results or in quarantine."""
    return {row[0] for row in wire.rows(f"SELECT block_id FROM {table}")}


def test_slow_link_and_a_cut_shorter_than_the_fence_end_nothing_and_what_was_measured_in_it_counts(
    tmp_path: Path,
) -> None:
    with lay_wire(tmp_path, "128kbit") as wire:
        wire.submit()
        wire.await_race(1)
        session, _ = wire.session()
        ranks = wire.list_ranks(session)
        with wire.cut("both"):
            waiting = wait_for(wire.spooled, "a race is measured in the cut")
        wait_for(lambda: waiting[0] <= kept(wire, "results"), "the report counts")
        wire.await_race(3)
        assert wire.session() == (session, "running")
        assert wire.list_ranks(session) == ranks
        assert not kept(wire, "quarantine")


@pytest.mark.parametrize("way", ["both", "answers"])
def test_agent_that_is_cut_off_ends_its_ranks_before_others_may_start_and_loses_no_result(
    tmp_path: Path, way: str
) -> None:
    with lay_wire(tmp_path, "100mbit") as wire:
        job = wire.submit()
        wire.await_race(1)
        session, _ = wire.session()
        assert wire.list_ranks(session)
        with wire.cut(way):
            waiting = wait_for(wire.spooled, "a race is measured in the cut")
            wait_for(lambda: not wire.list_ranks(session), "the agent ends its ranks")
            assert wire.session() == (session, "running"), (
                "the server gave the session up before the ranks were gone"
            )
            wait_for(lambda: wire.session()[1] == "lost", "the server gives the session up")
            assert wire.spooled() == waiting
        wait_for(
            lambda: waiting[0] <= kept(wire, "results") | kept(wire, "quarantine"), "the report is handed in"
        )
        # Whoever was answered by nobody may have been heard: then it counts, and otherwise it came too late.
        assert way == "answers" or waiting[0] <= kept(wire, "quarantine")
        wait_for(lambda: not wire.spooled(), "the spool is empty")
        wait_for(
            lambda: wire.session()[0] != session and wire.session()[1] == "running", "the agent serves on"
        )
        wire.await_race(2)
        assert not wire.list_ranks(session)
        history = wire.ask("GET", f"/jobs/{job}/history").json()
        assert [launch["state"] for launch in history["sessions"]][:2] == ["lost", "running"]
