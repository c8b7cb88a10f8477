"""A small server that hands out sessions, agents that serve it, and scripts for them to run."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from advisor.protocol.messages import AgentRegistered, Assignment, BeatReply, NextReply, PollReply
from advisor.protocol.trials import BlockPlan, SessionState
from advisor.protocol.workload import Workload
from agent.client import ServerClient
from agent.loop import Agent
from agent.nvml import NoGpus
from agent.processes import SESSION_MARKER, list_marked
from agent.settings import AgentSettings

REPOSITORY = Path(__file__).parents[3]
TOKEN = "adv_agent_canary_secret"
OWN_TOKEN = "adv_agent_canary_own"

FAKE_RUNTIME = """
import importlib.util, json, os, runpy, socket, sys, types
spec = importlib.util.spec_from_file_location("beat", {beat!r})
beat = importlib.util.module_from_spec(spec)
sys.modules["beat"] = beat
spec.loader.exec_module(beat)

def tell(message, answered=True):
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["ADVISOR_CONTROL"])
    line.sendall(json.dumps(message).encode() + b"\\n")
    return json.loads(line.makefile().readline()) if answered else None

class Advisor:
    tell = staticmethod(tell)
    beat = beat
    directory = os.environ["ADVISOR_SESSION_DIR"]

module = types.ModuleType("fake_advisor")
module.Advisor = Advisor
sys.modules["fake_advisor"] = module
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

FACTS = {
    "backend": "gloo", "device": "cpu", "world_size": 2, "local_world_size": 2, "gradient_bytes": 4000,
    "parameter_tensors": 4, "layers": 2, "batch_size_per_rank": 8,
}  # fmt: skip


@dataclass
class FakeSession:
    """One session as the fake server sees it."""

    assignments: dict[str, Assignment]
    """By agent."""
    plans: list[BlockPlan]
    state: SessionState = SessionState.ASSEMBLING
    ready: set[str] = field(default_factory=set)
    rendezvous: str | None = None
    beats: list[dict[str, Any]] = field(default_factory=list)
    hellos: list[dict[str, Any]] = field(default_factory=list)
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends: list[dict[str, Any]] = field(default_factory=list)

    @property
    def log(self) -> str:
        """Everything the agents sent of the log."""
        return "".join(beat["log"] for beat in self.beats)


class FakeServer:
    """Speaks the agents' half of the API over real HTTP."""

    def __init__(self, fence_s: float = 18.0) -> None:
        self.registered = AgentRegistered(
            agent_id="", token=OWN_TOKEN, poll_s=0.3, beat_s=0.2, lease_s=5.0, fence_s=fence_s
        )
        self.sessions: dict[str, FakeSession] = {}
        self.agents: set[str] = set()
        self.refuse: Callable[[str], int | None] = lambda path: None
        """A status to answer a path with instead."""
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.removeprefix("/api/v1/")
                token = TOKEN if path == "agents" else OWN_TOKEN
                if self.headers.get("Authorization") != f"Bearer {token}":
                    return self._answer(401, {"code": "unauthorized", "detail": "No such token."})
                status = server.refuse(path)
                if status is not None:
                    return self._answer(status, {"code": "fake", "detail": "Refused by the test."})
                return self._answer(200, server.answer(path, json.loads(body) if body else {}))

            def _answer(self, status: int, reply: dict[str, Any]) -> None:
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                return None

        class QuietServer(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A peer that was killed in the middle of a request is what these tests are about."""

        self._http = QuietServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def assign(
        self, session_id: str, workload: Workload, agents: tuple[str, ...], plans: int = 0, **settings: Any
    ) -> FakeSession:
        """Hand a session to the agents at their next poll."""
        assignments = {
            agent: Assignment(
                session_id=session_id,
                generation=1,
                job_id="job",
                node_rank=rank,
                nnodes=len(agents),
                workload=workload,
                **settings,
            )
            for rank, agent in enumerate(agents)
        }
        measured = [
            BlockPlan(
                block_id=f"b{n}", trial_number=n, warmup_steps=1, min_steps=5, max_steps=5, target_s=0.1
            )
            for n in range(plans)
        ]
        session = FakeSession(assignments, measured)
        with self._lock:
            self.sessions[session_id] = session
        return session

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        parts = path.split("/")
        with self._lock:
            if parts == ["agents"]:
                self.agents.add(body["name"])
                return self.registered.model_copy(update={"agent_id": body["name"]}).model_dump(mode="json")
            if parts[0] == "agents":
                assignment = next(
                    (
                        s.assignments.pop(parts[1])
                        for s in self.sessions.values()
                        if parts[1] in s.assignments
                    ),
                    None,
                )
                if assignment is None:
                    time.sleep(0.05)
                return PollReply(assignment=assignment).model_dump(mode="json")
            return self._answer_session(self.sessions[parts[1]], parts[2:], body)

    def _answer_session(self, session: FakeSession, verb: list[str], body: dict[str, Any]) -> dict[str, Any]:
        if verb == ["beat"]:
            session.beats.append(body)
            if body["rendezvous"]:
                session.rendezvous = body["rendezvous"]
            if not session.assignments and session.rendezvous and session.state is SessionState.ASSEMBLING:
                session.state = SessionState.RUNNING
            rendezvous = session.rendezvous if session.state is SessionState.RUNNING else None
            return BeatReply(state=session.state, rendezvous=rendezvous).model_dump(mode="json")
        if verb == ["hello"]:
            session.hellos.append(body)
        elif verb == ["next"]:
            plan = next((plan for plan in session.plans if plan.block_id not in session.blocks), None)
            because = "" if plan else "Everything is measured."
            if plan is None:
                session.state = SessionState.ENDING
            return NextReply(plan=plan, end_because=because).model_dump(mode="json")
        elif verb[0] == "blocks":
            session.blocks[verb[1]] = body
        elif verb == ["end"]:
            session.ends.append(body)
            session.state = SessionState.ENDING
        return {}


def wait_for(what: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Return the first true value of `what`."""
    deadline = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


def list_session_processes(session_id: str) -> list[int]:
    """Return the processes of generation 1 of a session."""
    return list_marked(**{SESSION_MARKER: f"{session_id}-1"})


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(name="list_session_processes")
def _list_session_processes() -> Callable[[str], list[int]]:
    return list_session_processes


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def session_id(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Unlike any other test's, also of a run that goes on beside this one."""
    return f"t{os.getpid()}{abs(hash(request.node.nodeid)) % 10**8}"


@pytest.fixture
def fake_runtime(tmp_path: Path) -> Path:
    path = tmp_path / "fake_runtime.py"
    path.write_text(FAKE_RUNTIME.format(beat=str(REPOSITORY / "agent" / "runtime" / "beat.py")))
    return path


@dataclass
class AgentStarter:
    """Starts agents for one test."""

    folder: Path
    url: str
    runtime: Path
    running: list[tuple[Agent, threading.Thread]] = field(default_factory=list)
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str = "a0", **settings: Any) -> Agent:
        """Start an agent in a thread of this process."""
        chosen = {"runtime_script": self.runtime, "startup_timeout_s": 60.0, "end_grace_s": 2.0} | settings
        agent_settings = AgentSettings(
            server_url=self.url, token=SecretStr(TOKEN), name=name, work_dir=self.folder / name, **chosen
        )
        environment = {**os.environ, "ADVISOR_AGENT_TOKEN": TOKEN, "HOME": str(self.folder)}
        agent = Agent(agent_settings, ServerClient(self.url, TOKEN), NoGpus(), environment)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        self.running.append((agent, thread))
        return agent

    def start_command(self, name: str = "a0") -> "subprocess.Popen[bytes]":
        """Start `advisor-agent run` in a process of its own, with the fake runtime in place of the real one."""
        program = (
            "import sys, pathlib, agent.settings as s;"
            f"s.AgentSettings.model_fields['runtime_script'].default = pathlib.Path({str(self.runtime)!r});"
            "s.AgentSettings.model_rebuild(force=True);"
            "from agent.cli import main; main()"
        )
        words = ["run", "--server", self.url, "--name", name, "--work-dir", str(self.folder / name)]
        environment = {**os.environ, "ADVISOR_AGENT_TOKEN": TOKEN, "PYTHONPATH": str(REPOSITORY)}
        command = subprocess.Popen([sys.executable, "-c", program, *words], env=environment)
        self.commands.append(command)
        return command

    def stop(self) -> None:
        for agent, _ in self.running:
            agent.stop()
        for _, thread in self.running:
            thread.join(timeout=30)
            assert not thread.is_alive(), "an agent does not stop"
        for command in self.commands:
            command.terminate()
            command.wait(timeout=30)


@pytest.fixture
def agents(tmp_path: Path, server: FakeServer, fake_runtime: Path) -> Iterator[AgentStarter]:
    starter = AgentStarter(tmp_path / "agents", server.url, fake_runtime)
    yield starter
    starter.stop()


@pytest.fixture(autouse=True)
def _check_leftovers(session_id: str, agents: AgentStarter) -> Iterator[None]:
    """Whatever a test does: no process of its session stays."""
    yield
    agents.stop()
    agents.running.clear()
    assert list_session_processes(session_id) == []


@pytest.fixture
def make_workload(tmp_path: Path) -> Callable[..., Workload]:
    """Write a script into a directory of its own, and return the workload that runs it as a plain process."""

    def make(
        script: str, *arguments: str, launcher: tuple[str, ...] = (sys.executable,), **more: Any
    ) -> Workload:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(script)
        return Workload(command=(*launcher, "train.py", *arguments), working_dir=str(folder), **more)

    return make


@pytest.fixture
def facts() -> dict[str, Any]:
    return FACTS
