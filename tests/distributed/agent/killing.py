"""Kills parts of a session at seeded moments, and counts what is left of it; `benchmarks/kills.py` uses it too."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from advisor.protocol.training.workload import Injection, Workload
from agent.guard.processes import SESSION_MARKER, kill_until_none, list_descendants, list_marked
from tests.distributed.agent.fake_server import FakeServer
from tests.distributed.agent.starter import AgentStarter, wait_for, write_fake_runtime

VICTIMS = (
    "agent, SIGKILL", "agent, SIGTERM", "outer shim, SIGKILL", "inner shim, SIGKILL", "agent and outer shim, SIGKILL",
    "agent and inner shim, SIGKILL", "agent and both shims, SIGKILL", "launcher, SIGKILL", "rank, SIGKILL",
    "agent and stopped inner shim, SIGKILL", "nobody: the server cancels",
)  # fmt: skip

LIGHT_SCRIPT = """
import os, sys, time
from fake_advisor import Advisor

def leave(token):
    "A helper that no process group and no marker leads to: two forks, a session and an environment of its own."
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {"ESCAPED": token})
        os._exit(0)
    os.wait()

def work(rank):
    os.setsid()
    leave(sys.argv[1])
    writer = Advisor.beat.BeatWriter(Advisor.directory, rank)
    for step in range(1, 10**9):
        writer.write(step, Advisor.beat.TIMING)
        time.sleep(0.05)

for rank in range(2):
    if os.fork() == 0:
        work(rank)
os.wait()
sys.exit(1)
"""
"""Two "ranks" in OS sessions of their own as torchrun makes them, each with a helper that escapes, without torch."""

TORCH_SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10**9):
    model(torch.randn(16, 64)).sum().backward()
    time.sleep(0.005)
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Kill:
    """What one seed did, and what became of the session's processes."""

    seed: int
    victim: str
    launcher: str
    struck: int
    """Processes of the session that ran when it was struck; 0: it was struck before its launch."""
    gone_after_s: float
    """Seconds until none was left; from the next agent's registration where agent and both shims were killed."""
    left: int
    """Processes still there at the deadline."""


class Yard:
    """One server and one agent, which is started again whenever a seed has killed it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = FakeServer()
        self._light = AgentStarter(
            folder / "light", self._server.url, write_fake_runtime(folder / "fake_runtime.py")
        )
        self._real = AgentStarter(folder / "real", self._server.url, None)
        self._agent: subprocess.Popen[bytes] | None = None
        self._is_real = False

    def strike(self, seed: int, victim: str, *, is_real: bool, deadline_s: float) -> Kill:
        """Start a session, strike at a moment that the seed decides, and watch its processes go.

        `is_real` takes torchrun, torch and our runtime instead of a script that forks.
        """
        chance = random.Random(seed)
        token = f"k{os.getpid()}-{id(self)}-{seed}"
        agent = self._ensure_agent(is_real)
        command = self._write_command(token, is_real)
        session = self._server.assign(
            token,
            # Where the fake runtime is: a script that python starts is reached through the environment otherwise.
            Workload(command=command, working_dir=str(self._folder), injection=Injection.LAUNCHER),
            ("a0",),
            plans=10**4 if is_real else 0,
        )
        wait_for(lambda: not session.assignments)
        pids = self._await_victims(victim, agent.pid, chance, is_real)
        struck = len(_list_left(token))
        if "cancels" in victim:
            session.state = "ending"
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, victim.rpartition(" ")[2]))
        is_unguarded = "both shims" in victim
        if is_unguarded:
            self._start_agent(is_real)
            self._await_registered()
        began_s = time.monotonic()
        gone_after_s, left = _await_gone(token, began_s, deadline_s, with_helpers=not is_unguarded)
        if is_unguarded:
            kill_until_none(lambda: list_marked(ESCAPED=token), 10.0)
        if victim.startswith("agent"):
            agent.wait(timeout=30)  # one that was asked to stop tells the server before it goes
        else:
            wait_for(lambda: session.ends, timeout_s=60)
        return Kill(seed, victim, "torchrun" if is_real else "script", struck, gone_after_s, left)

    def close(self) -> None:
        self._stop_agent()
        self._light.stop()
        self._real.stop()
        self._server.close()

    def _ensure_agent(self, is_real: bool) -> "subprocess.Popen[bytes]":
        if self._agent is None or self._is_real != is_real or self._agent.poll() is not None:
            self._start_agent(is_real)
        self._await_registered()
        assert self._agent is not None
        return self._agent

    def _await_registered(self) -> None:
        wait_for(lambda: self._server.agents, timeout_s=60)

    def _start_agent(self, is_real: bool) -> None:
        self._stop_agent()
        self._server.agents.clear()
        self._agent, self._is_real = (self._real if is_real else self._light).start_command("a0"), is_real

    def _stop_agent(self) -> None:
        if self._agent is not None:
            self._agent.terminate()
            self._agent.wait(timeout=30)
            self._agent = None

    def _write_command(self, token: str, is_real: bool) -> tuple[str, ...]:
        name = "torch_script.py" if is_real else "light_script.py"
        (self._folder / name).write_text(TORCH_SCRIPT if is_real else LIGHT_SCRIPT)
        launcher = ("torchrun", "--nproc-per-node", "2", "--standalone") if is_real else (sys.executable,)
        return (*launcher, name, token)

    def _await_victims(self, victim: str, agent: int, chance: random.Random, is_real: bool) -> list[int]:
        """Let a while pass, from before the launch until well into training; then return whom to strike."""
        time.sleep(chance.uniform(0.0, 10.0 if is_real else 1.0))
        if victim.startswith(("agent, ", "nobody")):
            return [] if victim.startswith("nobody") else [agent]
        outer = wait_for(lambda: _children(agent, "agent.guard.shim"))[0]
        inner = wait_for(lambda: _children(outer, "agent.guard.shim"))[0]
        if "stopped" in victim:  # as if it hung
            os.kill(inner, signal.SIGSTOP)
            return [agent]
        if "shim" in victim:
            shims = {"outer": [outer], "inner": [inner], "both": [outer, inner]}
            chosen = next(pids for word, pids in shims.items() if word in victim)
            return [agent, *chosen] if victim.startswith("agent") else chosen
        launcher = wait_for(lambda: _children(inner, ""))[0]
        if victim == "launcher, SIGKILL":
            return [launcher]
        ranks = wait_for(lambda: len(found := _children(launcher, "")) == 2 and found, timeout_s=60)
        return [chance.choice(ranks)]


@contextmanager
def open_yard(folder: Path) -> Iterator[Yard]:
    """Offer a yard for as long as the context lasts."""
    yard = Yard(folder)
    try:
        yield yard
    finally:
        yard.close()


def _children(parent: int, words: str) -> list[int]:
    found = []
    for pid in list_descendants(parent):
        with suppress(OSError):
            status = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if int(status[1]) == parent and words in line:
                found.append(pid)
    return found


def _list_left(token: str, with_helpers: bool = True) -> list[int]:
    helpers = list_marked(ESCAPED=token) if with_helpers else []
    return [*list_marked(**{SESSION_MARKER: f"{token}-1"}), *helpers]


def _await_gone(token: str, began_s: float, deadline_s: float, *, with_helpers: bool) -> tuple[float, int]:
    """Wait until nothing is left and nothing more comes; return when that was, and what is left at the deadline."""
    gone_at_s = None
    while True:
        left, now = _list_left(token, with_helpers), time.monotonic()
        if left:
            gone_at_s = None
            if now - began_s > deadline_s:
                return now - began_s, len(left)
        elif gone_at_s is None:
            gone_at_s = now
        elif now - gone_at_s > 0.5:
            return gone_at_s - began_s, 0
        time.sleep(0.02)


def choose_victim(seed: int, victims: tuple[str, ...] = VICTIMS) -> str:
    """Return whom a seed strikes: all in turn, so that each is struck as often as any other."""
    return victims[seed % len(victims)]
