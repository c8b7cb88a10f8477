"""Network namespaces that this program makes: owned while their maker lives, found and removed when it was killed."""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from pydantic import ValidationError

from advisor.local.server import LocalModeFailed
from advisor.protocol.base import Message

RECORDS = Path("/run/fleet-advisor/testbeds")
"""One file for each number that a testbed can have. A process that holds its lock owns the namespaces it names."""
NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps its names."""

_HINT = "`advisor doctor` says whether this machine can build a testbed; docs/testbed.md says what it needs."
_MOST_TESTBEDS = 100
_STOP_S = 10.0
_POLL_S = 0.1


class OwnedNamespaces(Message):
    """What a record says: which namespaces there may be, and who made them."""

    names: tuple[str, ...]
    pid: int
    made_at: datetime


def run_tool(*words: str) -> str:
    """Run `ip` or `tc` and return what it printed; raises `LocalModeFailed` with what it said instead."""
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise LocalModeFailed(
            f"`{' '.join(words)}` failed: {said.strip().splitlines()[-1]}.", _HINT
        ) from error


@contextmanager
def own_namespaces(roles: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Make a namespace for each role, and remove them all in the end with whatever runs in them; yields their names.

    Needs root. The kernel releases a killed owner's lock: `remove_leftovers` then finds what it left.
    Raises `LocalModeFailed`.
    """
    RECORDS.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in range(_MOST_TESTBEDS):
        names = tuple(f"fleet-advisor-{number}-{role}" for role in roles)
        with (RECORDS / f"{number}.json").open("ab+", buffering=0) as record:
            if not _try_lock(record) or _read(record) is not None or any(map(_exists, names)):
                continue
            owned = OwnedNamespaces(names=names, pid=os.getpid(), made_at=datetime.now(UTC))
            record.truncate(0)
            record.write(owned.model_dump_json().encode())
            try:
                for name in names:
                    run_tool("ip", "netns", "add", name)
                yield names
            finally:
                _remove(names)
                record.truncate(0)
            return
    raise LocalModeFailed(
        f"{_MOST_TESTBEDS} testbeds run on this machine already ({RECORDS} names them).", "Stop one of them."
    )


def remove_leftovers() -> tuple[str, ...]:
    """Remove the namespaces whose owner is gone, with whatever runs in them; return their names.

    Only names in a record without an owner are touched. Needs root.
    """
    removed: list[str] = []
    for path in sorted(RECORDS.glob("*.json")):
        with path.open("rb+", buffering=0) as record:
            if _try_lock(record) and (owned := _read(record)) is not None:
                left = tuple(name for name in owned.names if _exists(name))
                _remove(left)
                record.truncate(0)
                removed += left
    return tuple(removed)


def _remove(names: Sequence[str]) -> None:
    present = [name for name in names if _exists(name)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _STOP_S
        for pid in _list_processes(present):
            _send(pid, number)
        while _list_processes(present) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    for name in present:
        run_tool("ip", "netns", "del", name)


def _list_processes(names: Sequence[str]) -> list[int]:
    return [int(pid) for name in names for pid in run_tool("ip", "netns", "pids", name).split()]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _exists(name: str) -> bool:
    return (NAMESPACES / name).exists()


def _try_lock(record: FileIO) -> bool:
    try:
        fcntl.flock(record.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(record: FileIO) -> OwnedNamespaces | None:
    record.seek(0)
    try:
        return OwnedNamespaces.model_validate_json(record.readall() or b"")
    except ValidationError:
        return None


def missing_tools() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
