"""What `head_to_head.py` puts to the test: this service, Optuna's storages and Vizier."""

import argparse
import collections
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import httpx
from sqlalchemy import create_engine, text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from struck_server import PostgresCluster, Server, SqliteFile  # noqa: E402

from advisor.protocol.asked.jobs import Budget, JobSpec  # noqa: E402
from advisor.protocol.training.workload import Workload  # noqa: E402
from tests.unit.services.fleet import measure_steps  # noqa: E402
from tests.unit.tuning.simulated_cluster import make_facts  # noqa: E402

TIMERS = {
    "ADVISOR_LEASE_S": "2", "ADVISOR_GRACE_S": "1", "ADVISOR_TICK_S": "0.1", "ADVISOR_POLL_S": "2",
    "ADVISOR_LOOK_S": "0.05", "ADVISOR_RESTART_S": "4", "ADVISOR_ASSEMBLE_S": "10",
}  # fmt: skip
STUCK_S = 60.0
Dump = list[tuple[str, list[float], bool]]
"""Trials: their id, the values that count for each, and whether it counts as being measured."""


class Service(Protocol):
    """What is put to the test."""

    name: str
    kind: str
    python: str
    url: str
    folder: Path

    def prepare(self, study: str) -> None:
        """See that there is something to measure."""
        ...

    def kill(self, chance: random.Random) -> bool:
        """Kill it and start it again; False where there is no service to kill."""
        ...

    def close(self) -> None:
        """Stop it."""
        ...


class Advisor:
    """This service."""

    kind, python = "advisor", sys.executable

    def __init__(self, folder: Path, on_postgres: bool) -> None:
        self.name = f"Fleet Advisor, {'PostgreSQL' if on_postgres else 'SQLite'}"
        self.folder, self.on_postgres = folder, on_postgres
        self.database = PostgresCluster() if on_postgres else SqliteFile(folder)
        self.server = Server(folder, self.database, TIMERS)
        self.url = self.server.url
        (folder / "result.json").write_text(json.dumps(asdict(measure_steps({}, lambda _: 1.0, 0.0))))
        facts = make_facts(world_size=2, nodes=1, local_world_size=2)
        (folder / "facts.json").write_text(facts.model_dump_json())
        self.jobs: collections.defaultdict[str, list[str]] = collections.defaultdict(list)

    def prepare(self, study: str) -> None:
        """Submit a job for each worker; those of earlier rounds are over."""
        spec = JobSpec(
            workload=Workload(command=("torchrun", "train.py")), budget=Budget(max_trials=1), name=study
        )
        with self.server.client() as http:
            for _ in range(2):
                reply = http.post("/jobs", json=spec.model_dump(mode="json")).raise_for_status()
                self.jobs[study].append(reply.json()["id"])

    def kill(self, chance: random.Random) -> bool:
        """Kill the server, or PostgreSQL."""
        if self.on_postgres and chance.random() < 0.5:
            self.database.strike("PostgreSQL crashed", chance, threading.Event())
        else:
            self.server.strike("server killed", chance, threading.Event())
        return True

    def dump(self, study: str) -> tuple[Dump, set[float]]:
        """What the tables hold: trials, and values kept beside them."""
        engine = create_engine(self.database.url)
        trials: Dump = []
        kept: set[float] = set()
        with engine.connect() as found:
            for job in self.jobs[study]:
                rows = found.execute(
                    text(
                        "SELECT b.id, b.state, s.state, r.body FROM blocks b JOIN sessions s ON s.id = b.session_id "
                        "LEFT JOIN results r ON r.block_id = b.id WHERE b.job_id = :job AND b.arm = 0"
                    ),
                    {"job": job},
                )
                trials += [
                    (block, [_read(body)] if body else [], state == "issued")
                    for block, state, _, body in rows
                ]
                live = text("SELECT id FROM sessions WHERE job_id = :job AND state NOT IN ('ended', 'lost')")
                trials += [(f"session {row[0]}", [], True) for row in found.execute(live, {"job": job})]
            kept |= {_read(row[0]) for row in found.execute(text("SELECT body FROM quarantine"))}
        engine.dispose()
        return trials, kept

    def retire(self, study: str) -> None:
        """Cancel the study's jobs, so that the next one's workers get its own."""
        with self.server.client() as http:
            for job in self.jobs[study]:
                with suppress(httpx.HTTPError):
                    http.post(f"/jobs/{job}:cancel")

    def close(self) -> None:
        """Stop server and database."""
        self.server.process.terminate()
        self.server.process.wait(30)
        self.database.close()


def _read(body: Any) -> float:
    return float((json.loads(body) if isinstance(body, str) else body)["switch_s"])


class Peer:
    """Optuna or Vizier: with a program of its own that serves, or with none."""

    def __init__(
        self, name: str, kind: str, python: str, folder: Path, on_postgres: bool, program: str
    ) -> None:
        """`program`: Python that serves, with DATABASE and PORT in it."""
        self.name, self.kind, self.python, self.folder = name, kind, python, folder
        self.database = PostgresCluster() if on_postgres else None
        url = self.database.url if self.database else f"sqlite:///{folder / 'peer.db'}"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.program = program.replace("DATABASE", repr(url)).replace("PORT", str(port))
        self.url = f"127.0.0.1:{port}" if program else url
        self.process: subprocess.Popen[bytes] | None = None
        self._start()

    def prepare(self, study: str) -> None:
        """Workers make the study."""

    def kill(self, chance: random.Random) -> bool:
        """Kill the server or PostgreSQL, in turn where there are both."""
        if self.database and (self.process is None or chance.random() < 0.5):
            self.database.strike("PostgreSQL crashed", chance, threading.Event())
        elif self.process is None:
            return False
        else:
            self.process.kill()
            self.process.wait()
            time.sleep(chance.uniform(0.0, 1.0))
            self._start()
        return True

    def close(self) -> None:
        """Stop it."""
        if self.process:
            self.process.kill()
            self.process.wait()
        if self.database:
            self.database.close()

    def _start(self) -> None:
        if not self.program:
            return
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen([self.python, "-c", self.program], stdout=log, stderr=log)
        deadline = time.monotonic() + 5 * STUCK_S
        while time.monotonic() < deadline:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), 1),
            ):
                return
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "server.log").read_text()[-1000:])
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} does not start")


GRPC_PROXY = (
    "from optuna.storages import get_storage, run_grpc_proxy_server;"
    "run_grpc_proxy_server(get_storage(DATABASE), host='127.0.0.1', port=PORT)"
)
VIZIER = (
    "import time; from vizier.service import servers;"
    "server = servers.DefaultVizierServer(host='127.0.0.1', database_url=DATABASE, port=PORT); time.sleep(10**6)"
)


def list_services(chosen: argparse.Namespace) -> dict[str, Callable[[Path], Service]]:
    """What can be put to the test with the Pythons that were given."""
    services: dict[str, Callable[[Path], Service]] = {
        "advisor-sqlite": lambda folder: Advisor(folder, on_postgres=False),
        "advisor-postgresql": lambda folder: Advisor(folder, on_postgres=True),
    }
    optuna, vizier = chosen.optuna, chosen.vizier
    if optuna:
        services |= {
            "optuna-sqlite": lambda f: Peer("Optuna RDB, SQLite", "optuna-rdb", optuna, f, False, ""),
            "optuna-postgresql": lambda f: Peer("Optuna RDB, PostgreSQL", "optuna-rdb", optuna, f, True, ""),
            "optuna-grpc": lambda f: Peer(
                "Optuna gRPC, PostgreSQL", "optuna-grpc", optuna, f, True, GRPC_PROXY
            ),
        }
    if vizier:
        services["vizier"] = lambda f: Peer("Vizier, SQLite", "vizier", vizier, f, False, VIZIER)
    return {name: make for name, make in services.items() if not chosen.only or name in chosen.only}
