"""Who uses a data directory: a lock for its one server, where that server listens, and a lock for measuring."""

import fcntl
import json
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from advisor.data_dir import make_private

_SERVER_LOCK, _SERVER_RECORD = "server.lock", "server.json"
_MEASURING_LOCK, _STARTING_LOCK = "measuring.lock", "starting.lock"
_TUNING_WORDS = "tuning-words"
_PROBE_S = 0.5
_TURN_POLL_S = 0.5
_STARTING_POLL_S = 0.05


@dataclass(frozen=True)
class ServerRecord:
    """The server that runs on a data directory."""

    url: str
    pid: int


class ServerRunning(Exception):
    """Another server already serves this data directory."""

    def __init__(self, data_dir: Path, record: ServerRecord | None) -> None:
        where = f" at {record.url} (process {record.pid})" if record else ""
        super().__init__(f"A server for {data_dir} is running already{where}.")


@contextmanager
def hold_server(data_dir: Path, url: str) -> Iterator[None]:
    """Be the only server of `data_dir`, and leave a note where it listens.

    Raises `ServerRunning` when there is one. The lock ends with the process, however it ends.
    """
    make_private(data_dir)
    with (data_dir / _SERVER_LOCK).open("a") as lock:
        # A command that looks for a running server holds the lock for a moment: that is not a server.
        deadline = time.monotonic() + _PROBE_S
        while not _try_lock(lock.fileno()):
            if time.monotonic() > deadline:
                raise ServerRunning(data_dir, _read(data_dir))
            time.sleep(0.02)
        path = data_dir / _SERVER_RECORD
        path.write_text(json.dumps(asdict(ServerRecord(url, os.getpid()))))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running_server(data_dir: Path) -> ServerRecord | None:
    """Return the server that runs on `data_dir`; None when there is none."""
    path = data_dir / _SERVER_LOCK
    if not path.exists():
        return None
    with path.open("a") as lock:
        # A record may be left over from a killed server; a lock cannot.
        return None if _try_lock(lock.fileno()) else _read(data_dir)


@contextmanager
def measuring_turn(data_dir: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Be the only one who measures with `data_dir` on this machine; waits for its turn, and says so.

    Two trainings timed at once on the same machine would time each other.
    """
    make_private(data_dir)
    with (data_dir / _MEASURING_LOCK).open("a") as lock:
        if not _try_lock(lock.fileno()):
            tell(
                "Another tuning is measuring on this machine, and two at once would disturb each other's timings: "
                "waiting for it to end. (With an ADVISOR_DATA_DIR of its own, a command does not wait.)"
            )
            while not _try_lock(lock.fileno()):
                time.sleep(_TURN_POLL_S)
        yield


@contextmanager
def starting_turn(data_dir: Path, patience_s: float) -> Iterator[Callable[[], None]]:
    """Be the only command that looks for a server of `data_dir` to start one where there is none.

    Yields what ends the turn early: a server that others may use is up, or was. Raises `TimeoutError`.
    """
    make_private(data_dir)
    deadline = time.monotonic() + patience_s
    with (data_dir / _STARTING_LOCK).open("a") as lock:
        while not _try_lock(lock.fileno()):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_STARTING_POLL_S)
        yield lock.close


def note_tuning(state: Path, words: str) -> None:
    """Leave a note of the words after `advisor` that measure the jobs of this directory."""
    make_private(state)
    (state / _TUNING_WORDS).write_text(words)


def tuning_words(data_dir: Path) -> str:
    """Return the words after `advisor` that measure the jobs of a directory: `tune`, where no note says more."""
    try:
        return (data_dir / _TUNING_WORDS).read_text()
    except OSError:
        return "tune"


def pointing_at(state: Path | None) -> str:
    """Return what stands before a command that is to look into the data directory of nodes; "" without one."""
    return f"ADVISOR_DATA_DIR={shlex.quote(str(state))} " if state else ""


def free_port() -> int:
    """Return a port of the loopback that no process listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(data_dir: Path) -> ServerRecord | None:
    try:
        found = json.loads((data_dir / _SERVER_RECORD).read_text())
        return ServerRecord(str(found["url"]), int(found["pid"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
