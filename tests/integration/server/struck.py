"""A real server in a process of its own that fails or dies at a fault point, and is started again as operators do."""

import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from advisor.app import create_app, read_clock
from advisor.errors import Unavailable
from advisor.services.timers import Timers
from advisor.serving import configure_server
from advisor.settings import Settings
from advisor.storage.fault_points import FaultPoint, Side, Strike
from advisor.tuning.asked import Tuning
from tests.integration.server.served import PATIENCE_S, Served
from tests.unit.services.scripted_tuning import ScriptedTuning

# Processes are forked from one that has loaded everything and runs no thread: starting a server takes no second.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["tests.integration.server.warmed_up", "pytest", "psycopg", "uvloop", "httptools"]
)
DEATH = 9
"""Exit code of a server that died at a fault point."""
_TRIES = 20
_REPLY_S = 5.0
UNHURRIED = Timers(lease_s=3600.0, assemble_s=3600.0, ending_s=3600.0)
"""Nothing is lost because a machine is busy."""


@dataclass(frozen=True)
class Blow:
    """Strikes once at each of some points, at the first server that comes to it."""

    points: frozenset[FaultPoint]
    side: Side
    deadly: bool
    """Whether the process ends without another word; else the transaction fails as if the database did."""
    folder: Path
    """Where a file for each point says that it was struck."""

    @property
    def struck(self) -> set[FaultPoint]:
        """The points that were struck."""
        return {point for point in self.points if self._mark(point).exists()}

    def strike(self, point: FaultPoint, side: Side) -> None:
        """Strike, if this is one of the points and it was not struck."""
        if side is not self.side or point not in self.points or self._mark(point).exists():
            return
        self._mark(point).touch()
        if self.deadly:
            os._exit(DEATH)
        raise Unavailable("The database went away.")

    def _mark(self, point: FaultPoint) -> Path:
        return self.folder / f"struck {point}"


class StruckServer(Served):
    """One database, and one server after the other on it."""

    def __init__(self, settings: Settings, strike: Strike, tuning: Tuning) -> None:
        self.settings, self.strike, self.tuning = settings, strike, tuning
        self.timers, self.ahead_s = UNHURRIED, 0.0
        # It stays open while servers come and go: who connects in between waits for the next one.
        self.socket = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.http = httpx.Client(base_url=url, timeout=_REPLY_S)  # type: ignore[assignment]
        self.deaths: list[int | None] = []
        self.told: dict[str, set[str]] = {"accepted": set(), "quarantined": set()}
        """Blocks by what the server has said of their results."""
        self.start()

    @property
    def admin(self) -> str:  # type: ignore[override]
        """The first administrator's token."""
        return (self.settings.data_dir / "admin-token").read_text().strip()

    @property
    def enrolment(self) -> str:  # type: ignore[override]
        """The first token that agents register with."""
        return (self.settings.data_dir / "agent-token").read_text().strip()

    def start(self) -> None:
        """Start servers until one serves."""
        for _ in range(3):
            reader, writer = _PROCESSES.Pipe(duplex=False)
            wanted = (self.socket, writer, self.settings, self.strike, self.tuning, self.timers, self.ahead_s)
            self.process = _PROCESSES.Process(target=serve, args=wanted, daemon=True)
            self.process.start()
            writer.close()
            if reader in wait([reader, self.process.sentinel], PATIENCE_S) and is_told(reader):
                return
            self.process.join(PATIENCE_S)
            self.deaths.append(self.process.exitcode)
        raise AssertionError(f"no server starts: {self.deaths}")

    def stop(self) -> None:
        """End it as a power cut does."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """End it for good."""
        self.stop()
        self.http.close()
        self.socket.close()

    def start_again(self, timers: Timers = UNHURRIED, later_s: float = 0.0) -> None:
        """Stop it, and start another one with these timers, whose clock is ahead."""
        self.stop()
        self.timers, self.ahead_s = timers, self.ahead_s + later_s
        self.start()

    def ask(self, method: str, path: str, token: str | None = None, **request: Any) -> Any:
        """Send a request until it is answered, as agents and clients do."""
        for _ in range(_TRIES):
            # A dead one is not asked: who connects to the open socket would wait for as long as a reply may take.
            if not self.process.is_alive():
                self.deaths.append(self.process.exitcode)
                self.start()
            try:
                reply = super().ask(method, path, token, **request)
                if reply.status_code != 503:
                    self._note(path, reply, request)
                    return reply
            except httpx.TransportError:
                self.process.join(1.0)
        raise AssertionError(f"{method} {path} is not answered")

    def _note(self, path: str, reply: Any, request: dict[str, Any]) -> None:
        if "/races/" in path and reply.status_code in {200, 409}:
            told = "accepted" if reply.status_code == 200 else "quarantined"
            self.told[told].update(request["json"]["results"])


def serve(
    listening: socket.socket,
    ready: Connection,
    settings: Settings,
    strike: Strike,
    tuning: Tuning,
    timers: Timers,
    ahead_s: float,
) -> None:
    """Be a server, in a process of its own."""
    threading.Thread(target=end_with_the_tests, daemon=True).start()
    sys.stdout = sys.stderr = open(settings.data_dir / "server.log", "a")  # noqa: SIM115
    clock: Callable[[], datetime] = lambda: read_clock() + timedelta(seconds=ahead_s)  # noqa: E731
    app = create_app(settings, tuning=tuning, clock=clock, strike=strike, timers=timers)
    _Telling(configure_server(app, settings), ready).run(sockets=[listening])


def end_with_the_tests() -> None:
    """Leave no server behind when whoever runs the tests is killed."""
    if (tests := multiprocessing.parent_process()) is not None:
        wait([tests.sentinel])
        os._exit(1)


def is_told(reader: Connection) -> bool:
    """Whether the server said that it serves."""
    try:
        return bool(reader.recv())
    except EOFError:
        return False


class _Telling(uvicorn.Server):
    """Says when it serves."""

    def __init__(self, config: uvicorn.Config, ready: Connection) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready.send(True)


def make_tuning() -> Tuning:
    """The baseline, and then a strategy beside it."""
    return ScriptedTuning(beside=1)
