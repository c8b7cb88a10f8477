"""A tiny agent: serves the control socket, hands out instructions from a list, keeps what rank 0 said."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.runtime.forked_ranks import RankForge

RUNTIME = Path(__file__).resolve().parents[3] / "agent" / "runtime"
LAUNCH = RUNTIME / "launch.py"
SCRIPTS = Path(__file__).parent / "scripts"


DEVICE = os.environ.get("FLEET_TEST_DEVICE", "cpu")
"""Where the scripts compute: `cpu`, or `cuda` for the cards (scripts/placement.py)."""
HIDE_CARDS = {"CUDA_VISIBLE_DEVICES": ""} if DEVICE == "cpu" else {}
_NOT_ITS_OWN = ("ADVISOR_", "RANK", "WORLD_SIZE", "TORCHINDUCTOR_CACHE_DIR")
"""What a script is not to have from this process; where compiled code is kept, torch itself sets as it compiles."""
FORGE = RankForge()
atexit.register(FORGE.close)


ABOUT_CPUS = pytest.mark.skipif(DEVICE != "cpu", reason="It tells what is refused, or timed, on a CPU.")
LONGER = 1 if DEVICE == "cpu" else 3
"""On cards DDP is asked in steps of their own, so that scripts need more of them."""

BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
"""What they communicate over."""


RULES: dict[str, Any] = {
    "warmup_steps": 2,
    "min_steps": 4,
    "max_steps": 4,
    "target_s": 0.01,
    "profile_steps": 1,
}


def race(arms: dict[str, dict[str, Any]], **rules: Any) -> dict[str, Any]:
    """A short race's instruction; the arms' overrides by their block ids."""
    return {
        "kind": "race",
        "race_id": next(iter(arms)),
        "rules": {**RULES, **rules},
        "arms": [{"block_id": block_id, "overrides": overrides} for block_id, overrides in arms.items()],
    }


def measure(block_id: str, overrides: dict[str, Any] | None = None, **rules: Any) -> dict[str, Any]:
    """A race of one arm."""
    return race({block_id: overrides or {}}, **rules)


END = {"kind": "end", "reason": "enough"}


class FakeAgent:
    """Answers each hello and race with the next instruction; troubles and endings get no reply."""

    def __init__(self, path: Path, instructions: Sequence[dict[str, Any]]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._instructions = list(instructions)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    self.messages.append(message)
                    if message["kind"] in ("hello", "race"):
                        reply = self._instructions.pop(0) if self._instructions else END
                        if reply["kind"] == "hang_up":
                            connection.shutdown(socket.SHUT_RDWR)
                            break
                        try:
                            connection.sendall(json.dumps(reply).encode() + b"\n")
                        except OSError:
                            return

    def close(self) -> None:
        self._listener.close()


@dataclass
class Session:
    """What came of one launch."""

    code: int
    log: str
    folder: Path
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def hello(self) -> dict[str, Any]:
        return self.find("hello")

    def find(self, kind: str) -> dict[str, Any]:
        found = [message for message in self.messages if message["kind"] == kind]
        assert found, f"no {kind} among {[m['kind'] for m in self.messages]}; log:\n{self.log[-4000:]}"
        return found[0]

    def result(self, block_id: str) -> dict[str, Any]:
        for message in self.messages:
            if message["kind"] == "race" and block_id in message["results"]:
                return dict(message["results"][block_id])
        raise AssertionError(f"no block {block_id}; log:\n{self.log[-4000:]}")


def launch(
    folder: Path,
    script: Sequence[str],
    instructions: Sequence[dict[str, Any]] | None = None,
    ranks: int = 2,
    variables: dict[str, str] | None = None,
    patched: bool = True,
    torchrun: bool = True,
    local_world_size: int | None = None,
    timeout_s: float = 100.0,
    injection: str = "launcher",
    python: str = sys.executable,
    forge: RankForge | None = FORGE,
) -> Session:
    """Runs a script of the scripts folder with (or without) the runtime in front, on forked ranks.

    Under torchrun without a `forge`, and with another `python`: the forge's torch is this one's.

    With `injection` "command" the script is a whole command line, and the runtime gets in through PYTHONPATH; with
    "none" the script itself is to start it.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_ITS_OWN)}
    environment.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", **HIDE_CARDS)
    environment.update(HF_HUB_OFFLINE="1", ADVISOR_TUNING="1", OUT=str(folder), PYTHONUNBUFFERED="1")
    agent = None
    if instructions is not None:
        # A unix socket's path is limited to 107 bytes, and pytest's folders are deep.
        socket_path = Path(f"/tmp/fa-{os.getpid()}-{abs(hash(str(folder))) % 10**8}.sock")
        socket_path.unlink(missing_ok=True)
        agent = FakeAgent(socket_path, instructions)
        environment["ADVISOR_CONTROL"] = str(socket_path)
    if patched:
        environment["ADVISOR_SESSION_DIR"] = str(folder / "session")
        environment["ADVISOR_SESSION"] = "test"
        if injection != "launcher":
            environment["ADVISOR_RUNTIME"] = str(RUNTIME)
            folders = ["injected", "api"] if injection == "command" else ["api"]
            environment["PYTHONPATH"] = os.pathsep.join(str(RUNTIME / folder) for folder in folders)
            environment["PATH"] = os.pathsep.join([str(Path(python).parent), environment["PATH"]])
    environment.update(variables or {})
    if injection != "command" and torchrun and forge is not None and python == sys.executable:
        words = [str(LAUNCH), *script] if patched and injection == "launcher" else list(script)
        try:
            code, log = forge.launch(words, environment, SCRIPTS, ranks, timeout_s, local_world_size)
        finally:
            if agent is not None:
                agent.close()
                socket_path.unlink(missing_ok=True)
        return Session(code, log, folder, agent.messages if agent is not None else [])
    command: list[str] = []
    if injection != "command":
        command.append(python)
        if torchrun:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        if patched and injection == "launcher":
            command.append(str(LAUNCH))
    command += script
    process = subprocess.Popen(
        command,
        cwd=SCRIPTS,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        log, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        log, _ = process.communicate(timeout=30)
        log += "\n[timed out]"
    finally:
        if agent is not None:
            agent.close()
            socket_path.unlink(missing_ok=True)
    return Session(process.returncode, log, folder, agent.messages if agent is not None else [])
