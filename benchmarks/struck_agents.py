"""Real agents that train a tiny script with gloo on CPUs, and what strikes them; for `soak.py`.

Each is `advisor-agent run` in a process of its own, started again by whoever kills it. Every report that its spool has
written down is linked into a ledger at that moment, so that afterwards the database can be asked for each.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
from faulty_agent import Counts

from agent.guard.processes import list_marked
from tests.distributed.agent.killing import TORCH_SCRIPT

ROOT = Path(__file__).parents[1]
MARK = "ADVISOR_SOAK"
"""In the environment of every process that a real agent starts, however indirectly."""
FAULTS = ("real agent killed", "real agent stopped", "real rank killed", "real rank stopped")
_PATIENCE_S = 60.0
_LEDGER = """
import os, sys
from agent.cli import main
from agent.sessions.spool import Spool
ledger, put = sys.argv.pop(1), Spool.put
def put_and_note(self, report):
    entry = put(self, report)
    os.link(entry.path, os.path.join(ledger, f"{os.getpid()}-{len(os.listdir(ledger))}"))
    return entry
Spool.put = put_and_note
main()
"""


class RealAgent:
    """One agent, whatever happens to its process."""

    def __init__(self, name: str, url: str, folder: Path, server_folder: Path) -> None:
        """`folder` is shared by all real agents: their ledger and the script they train lie there."""
        self.name, self.url, self.folder, self.server_folder = name, url, folder, server_folder
        (folder / "ledger").mkdir(exist_ok=True)
        (folder / "project").mkdir(exist_ok=True)
        (folder / "project" / "train.py").write_text(TORCH_SCRIPT)
        self.starts = 0
        self.start()

    @property
    def spool(self) -> Path:
        """Where reports wait."""
        return self.folder / self.name / "spool"

    def start(self) -> None:
        """Start the process."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        own = {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", MARK: str(self.folder),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }  # fmt: skip
        words = [
            sys.executable, "-c", _LEDGER, str(self.folder / "ledger"), "run", "--server", self.url,
            "--name", self.name, "--token-file", str(self.server_folder / "agent-token"),
            "--work-dir", str(self.folder / self.name), "--allow-root", str(self.folder / "project"),
        ]  # fmt: skip
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(words, env=known | own, stdout=log, stderr=log)
        self.starts += 1

    def kill(self) -> None:
        """End it as a power cut would; its ranks are its guards' to end."""
        self.process.kill()
        self.process.wait()

    def list_ranks(self) -> list[int]:
        """The training processes of this agent."""
        found = []
        with suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if child.cmdline()[-1:] == ["train.py"] and "RANK" in child.environ():
                        found.append(child.pid)
        return found

    def strike(self, fault: str, chance: random.Random, over: threading.Event) -> bool:
        """Let one fault happen; False where there is nobody to strike."""
        if fault == "real agent killed":
            self.kill()
            over.wait(chance.uniform(0.0, 2.0))
            self.start()
            return True
        victims = [self.process.pid] if "agent" in fault else self.list_ranks()
        if not victims:
            return False
        victim = chance.choice(victims)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL if "killed" in fault else signal.SIGSTOP)
            over.wait(0.0 if "killed" in fault else chance.uniform(0.5, 9.0))
            os.kill(victim, signal.SIGCONT)
        return True


def strike_agents(
    agents: list[RealAgent], seed: str, counts: Counts, over: threading.Event, pause_s: float
) -> None:
    """Faults of real agents and their ranks, one after another."""
    chance = random.Random(seed)
    while agents and not over.wait(chance.uniform(0.5, 1.5) * pause_s):
        fault, agent = chance.choice(FAULTS), chance.choice(agents)
        if agent.process.poll() is not None:
            counts.unexpected.append(f"{agent.name} ended by itself: {read_end(agent)}")
            agent.start()
        counts.faults[fault] += agent.strike(fault, chance, over)


def read_end(agent: RealAgent) -> str:
    """The last words of an agent."""
    return (agent.folder / f"{agent.name}.log").read_text(errors="replace")[-300:]


def settle(agents: list[RealAgent], counts: Counts) -> None:
    """Let everybody hand in what waits, then stop; a report or a process that stays is noted."""
    for agent in agents:
        agent.kill()
        agent.start()  # one that waits long before its next attempt begins anew
    deadline = time.monotonic() + _PATIENCE_S
    while any(list(agent.spool.glob("*.report")) for agent in agents) and time.monotonic() < deadline:
        time.sleep(0.2)
    for agent in agents:
        agent.process.terminate()
    for agent in agents:
        agent.process.wait(_PATIENCE_S)
        waiting = [path.name for path in agent.spool.glob("*.report")]
        aside = [path.read_text() for path in (agent.folder / agent.name / "quarantine").glob("*.reason")]
        if waiting or aside:
            counts.unexpected.append(f"{agent.name}: {len(waiting)} reports wait, set aside: {aside[:3]}")
    if agents and (left := list_marked(**{MARK: str(agents[0].folder)})):
        counts.unexpected.append(
            f"{len(left)} training processes are left after their agents stopped: {left}"
        )


def read_ledger(folder: Path) -> list[set[str]]:
    """The blocks of every report that a real agent has written down."""
    found = []
    for path in (folder / "ledger").glob("*"):
        spooled = json.loads(path.read_bytes()[:-40])
        found.append(set(json.loads(spooled["body"])["results"]))
    return found
