"""The server of local mode: the one that runs on the data directory already, or a new one on a free port."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from advisor.client import Client
from advisor.local.process import PYTHON, LocalProcess, ProcessDied
from advisor.local.record import make_private, running_server

_START_S = 90.0
_STOP_S = 15.0
_POLL_S = 0.1


class LocalModeFailed(Exception):
    """Local mode could not start or lost one of its processes; `hint` says what to do."""

    def __init__(self, sentence: str, hint: str, log_tail: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint
        self.log_tail = log_tail


@dataclass(frozen=True)
class LocalServer:
    """A server on this machine that answers."""

    url: str
    token: str
    """An administrator's token, from the data directory."""
    agent_token_file: Path
    started_here: bool
    """Whether it stops with this command; False when it ran already."""
    check: Callable[[], None]
    """Raises `LocalModeFailed` when it runs no more."""


@contextmanager
def local_server(
    data_dir: Path, environment: Mapping[str, str], tell: Callable[[str], None]
) -> Iterator[LocalServer]:
    """Offer a server on `data_dir` for as long as the context lasts.

    Raises `LocalModeFailed` with the end of its log when it does not come up.
    """
    make_private(data_dir)
    if (record := running_server(data_dir)) is not None:
        tell(f"Using the server that runs at {record.url} (process {record.pid}).")
        yield _connect(record.url, data_dir, started_here=False, check=lambda: _check_record(data_dir))
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ("--host", "127.0.0.1", "--port", str(port), "--data-dir", str(data_dir))
    process = LocalProcess(
        "local server",
        [*PYTHON, "-m", "advisor", "serve", *options],
        data_dir / "logs" / "server.log",
        environment,
    )
    try:
        _await_ready(url, process)
        tell(f"Started a server for this machine: {url}")
        yield _connect(url, data_dir, started_here=True, check=lambda: _check_process(process))
    finally:
        process.stop(_STOP_S)


def failure_of(died: ProcessDied, hint: str) -> LocalModeFailed:
    """Tell of a process that ended although it was needed, with the end of its log."""
    return LocalModeFailed(str(died), f"{hint} Its log is {died.log_path}.", died.log_tail)


def _await_ready(url: str, process: LocalProcess) -> None:
    deadline = time.monotonic() + _START_S
    with Client(url, token=None) as client:
        while not client.is_ready():
            _check_process(process)
            if time.monotonic() > deadline:
                raise LocalModeFailed(
                    f"The local server did not become ready within {_START_S:.0f} s.",
                    f"Its log is {process.log_path}.",
                    process.log_tail(),
                )
            time.sleep(_POLL_S)


def _connect(url: str, data_dir: Path, started_here: bool, check: Callable[[], None]) -> LocalServer:
    token_file = data_dir / "admin-token"
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise LocalModeFailed(
            f"The server's administrator token cannot be read: {error}.",
            "The server writes it on its first start on a data directory. Run this as the same user, or set "
            "ADVISOR_URL and ADVISOR_TOKEN.",
        ) from error
    return LocalServer(url, token, data_dir / "agent-token", started_here, check)


def _check_process(process: LocalProcess) -> None:
    try:
        process.check()
    except ProcessDied as died:
        raise failure_of(
            died, "Run `advisor doctor`, then the same command again: nothing is lost."
        ) from died


def _check_record(data_dir: Path) -> None:
    if running_server(data_dir) is None:
        raise LocalModeFailed(
            "The server that this command was using has stopped.",
            "Run the same command again: it starts a server of its own and resumes the job.",
        )


def free_port() -> int:
    """Return a port of the loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
