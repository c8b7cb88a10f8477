"""Starts real agents for tests and benchmarks, with a fake runtime that costs no import of torch."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from agent.client import ServerClient
from agent.devices.gpus import Gpus
from agent.guard.processes import SESSION_MARKER, list_marked
from agent.guard.rank_folder import remove_leftover_folders
from agent.loop import Agent
from agent.settings import AgentSettings
from tests.distributed.agent.fake_server import TOKEN
from tests.no_gpus import NoGpus

REPOSITORY = Path(__file__).parents[3]

FAKE_RUNTIME = """
import importlib.util, json, os, runpy, socket, sys, types

def load(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join({runtime!r}, name + ".py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

beat = load("link/beat")

def tell(message, answered=True):
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["ADVISOR_CONTROL"])
    line.sendall(json.dumps(message).encode() + b"\\n")
    if answered:
        return json.loads(line.makefile().readline())
    line.shutdown(socket.SHUT_WR)
    line.recv(1)

class Advisor:
    tell = staticmethod(tell)
    beat = beat
    stacks = load("link/stacks")
    directory = os.environ["ADVISOR_SESSION_DIR"]

module = types.ModuleType("fake_advisor")
module.Advisor = Advisor
sys.modules["fake_advisor"] = module
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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


def write_fake_runtime(path: Path) -> Path:
    """Write the script that stands in the runtime's place; it runs the user's script with an `Advisor` to import."""
    path.write_text(FAKE_RUNTIME.format(runtime=str(REPOSITORY / "agent" / "runtime")))
    return path


@dataclass
class AgentStarter:
    """Starts agents for one test."""

    folder: Path
    url: str
    runtime: Path | None
    """What takes the runtime's place; None: the real one."""
    running: list[tuple[Agent, threading.Thread]] = field(default_factory=list)
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str = "a0", gpus: Gpus | None = None, **settings: Any) -> Agent:
        """Start an agent in a thread of this process; on a node without GPUs when none are given."""
        chosen = {"runtime_script": self.runtime, "startup_timeout_s": 60.0, "end_grace_s": 2.0} | settings
        agent_settings = AgentSettings(
            server_url=self.url, token=SecretStr(TOKEN), name=name, work_dir=self.folder / name, **chosen
        )
        environment = {**os.environ, "ADVISOR_AGENT_TOKEN": TOKEN, "HOME": str(self.folder)}
        agent = Agent(agent_settings, ServerClient(self.url, TOKEN), gpus or NoGpus(), environment)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        self.running.append((agent, thread))
        return agent

    def start_command(self, name: str = "a0", *options: str) -> "subprocess.Popen[bytes]":
        """Start `advisor-agent run` in a process of its own, with the fake runtime in place of the real one."""
        chosen = f"pathlib.Path({str(self.runtime)!r})" if self.runtime else "s.RUNTIME_SCRIPT"
        program = (
            "import sys, pathlib, agent.settings as s;"
            f"s.AgentSettings.model_fields['runtime_script'].default = {chosen};"
            "s.AgentSettings.model_rebuild(force=True);"
            "from agent.cli import main; main()"
        )
        words = ["run", "--server", self.url, "--name", name, "--work-dir", str(self.folder / name), *options]
        words += [] if "--config" in options else ["--allow-root", "/"]
        environment = {
            **os.environ,
            "ADVISOR_AGENT_TOKEN": TOKEN,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)]),
        }
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
        for identity in self.folder.glob("*/identity"):
            # Those that were killed for good; the next start would do it.
            remove_leftover_folders(f"{identity.parent.name}-{identity.read_text()}")
