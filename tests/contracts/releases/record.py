"""Records what a release says and what it keeps, so that the next ones are held to it.

    python tests/contracts/releases/record.py tests/contracts/releases/2026-11-23

A server, an agent and a training of two ranks, all of the release that is installed, as users start them. One job is
measured to its end; in the middle of a second one agent and server are killed. Kept are requests of all kinds with
their answers (`wire.json.gz`) and the database (`database.sql.gz`), without this machine's names. The token in
them is that of an agent which is gone.
"""

import gzip
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn

from advisor.app import create_app
from advisor.settings import Settings

OF_EACH = 3
"""Exchanges that are kept of one route, session, status and form of the body."""
TRAIN = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10**6):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
"""
JOB = """
name: recorded
workload: {kind: pytorch, command: [torchrun, --nproc-per-node, "2", train.py], working_dir: FOLDER}
budget: {max_trials: 4, max_seconds: SECONDS}
measurement: {block_s: 0.5}
labels: {team: vision}
"""


class Listener:
    """Middleware that keeps what is said."""

    def __init__(self, app: Any) -> None:
        self.app, self.heard = app, []
        self._counts: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on, and keep both sides' words."""
        if scope["type"] != "http" or not scope["path"].startswith("/api/v1/"):
            await self.app(scope, receive, send)
            return
        asked, answered, status = b"", b"", 0

        async def hear() -> Any:
            nonlocal asked
            message = await receive()
            asked += message.get("body", b"")
            return message

        async def say(message: Any) -> None:
            nonlocal answered, status
            answered += message.get("body", b"")
            status = message.get("status", status)
            await send(message)

        await self.app(scope, hear, say)
        self._keep(scope, asked, answered, status)

    def _keep(self, scope: Any, asked: bytes, answered: bytes, status: int) -> None:
        if "/stream" in scope["path"]:
            return
        body, reply = (json.loads(text) if text else None for text in (asked, answered))
        parts = scope["path"].split("/")[3:]
        session = parts[1] if parts[0] == "sessions" else ""
        # A race's own name is the only last part that is no word.
        what = [part for part in parts if part.isalpha()]
        form = f"{scope['method']} {what} {session} {status} {list_forms(body)}"
        self._counts[form] += 1
        if self._counts[form] <= OF_EACH:
            said = {"method": scope["method"], "path": scope["path"], "query": scope["query_string"].decode()}
            self.heard.append({**said, "body": body, "status": status, "reply": reply})


def list_forms(body: Any) -> list[str]:
    """Which fields of a body say something."""
    return sorted(name for name, value in body.items() if value) if isinstance(body, dict) else []


def wait_for(look: Any, what: str, limit_s: float = 240.0) -> Any:
    """Wait until `look` finds something."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if found := look():
            return found
        time.sleep(0.2)
    raise SystemExit(f"{what}: not within {limit_s:.0f} s")


def record(folder: Path) -> tuple[list[Any], str]:
    """Run everything; return what was said and the database as SQL."""
    data_dir, training = folder / "data", folder / "training"
    training.mkdir()
    (training / "train.py").write_text(TRAIN)
    for seconds in (75, 3600):
        job = JOB.replace("FOLDER", str(training)).replace("SECONDS", str(seconds))
        (training / f"{seconds}.yaml").write_text(job)
    listener = Listener(create_app(Settings(data_dir=data_dir)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(listener, port=port, log_level="warning", lifespan="on"))
    threading.Thread(target=server.run, daemon=True).start()
    wait_for(lambda: server.started, "the server")
    url = f"http://127.0.0.1:{port}"
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {"ADVISOR_URL": url, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    environment |= {
        "ADVISOR_TOKEN": (data_dir / "admin-token").read_text().strip(),
        "ADVISOR_DATA_DIR": str(folder / "client"),
        "NO_COLOR": "1",
    }
    agent = subprocess.Popen(
        [sys.executable, "-m", "agent", "run", "--server", url, "--name", "one", "--work-dir", str(folder / "agent"),
         "--token-file", str(data_dir / "agent-token"), "--allow-root", str(training)],
        env=environment, cwd=training,
    )  # fmt: skip

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "advisor", *words]
        done = subprocess.run(
            command, env=environment, cwd=training, text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def count_blocks() -> int:
        with sqlite3.connect(f"file:{data_dir / 'advisor.db'}?mode=ro", uri=True) as database:
            return int(
                database.execute("SELECT count(*) FROM blocks WHERE finished_at IS NOT NULL").fetchone()[0]
            )

    try:
        call("submit", "--detach", "75.yaml")
        wait_for(lambda: "finished" in call("jobs"), "the first job")
        for words in (
            ("advice", "last", "--json"),
            ("agents", "list"),
            ("show", "last", "--json"),
            ("token", "list"),
        ):
            print(words, len(call(*words)))
        before = count_blocks()
        call("submit", "--detach", "3600.yaml")
        wait_for(lambda: count_blocks() >= before + 4, "the second job's blocks")
        agent.kill()
        with sqlite3.connect(data_dir / "advisor.db") as database:
            kept = "\n".join(database.iterdump())
    finally:
        agent.kill()
        server.should_exit = True
    return listener.heard, kept


def main() -> None:
    """Record into the folder that is named."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recorded-", ignore_cleanup_errors=True) as directory:
        heard, kept = record(Path(directory))
    names = {
        directory: "/srv/recorded",
        str(Path(sys.prefix)): "/srv/venv",
        str(Path(create_app.__code__.co_filename).parents[1]): "/srv/advisor",
        os.path.realpath(sys.executable): "/usr/bin/python3",
        socket.gethostname(): "node-1",
    }
    for name, text in (("wire.json", json.dumps(heard, indent=1)), ("database.sql", kept)):
        for ours, theirs in names.items():
            text = text.replace(ours, theirs)
        # Always the same bytes for the same text.
        (target / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        print(name, len(text), (target / f"{name}.gz").stat().st_size)


if __name__ == "__main__":
    main()
