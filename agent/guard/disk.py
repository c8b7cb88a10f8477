"""Watches how much room the file systems have left that a session writes to, so that no script fills a node's disk."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RESERVE_BYTES = 2 * 2**30
"""A session ends before less than this is left…"""
RESERVE_SHARE = 0.05
"""…or this share of a small file system."""
_PERIOD_S = 0.5
_PATIENCE_S = 0.01
"""The longest that a look waits for one file system: one that does not answer is asked on in a thread of its own."""

Room = tuple[int, int]
"""Bytes that are left for ordinary users, and the file system's size in bytes."""


def read_room(path: Path) -> Room:
    """Return how much room the file system of `path` has; raises OSError."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize


@dataclass(frozen=True)
class Shortage:
    """A file system that is nearly full."""

    sentence: str
    is_sessions_own: bool
    """Most of the room went since the launch; else the disk was nearly full before."""


class DiskGuard:
    """The file systems of one session."""

    def __init__(
        self,
        paths: Iterable[Path],
        read: Callable[[Path], Room] = read_room,
        period_s: float = _PERIOD_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`paths` are directories that the session's processes can write to."""
        self._watched = [_Watched(path, read, patience_s) for path in dict.fromkeys(paths)]
        self._period_s, self._looked_s = period_s, -period_s
        self.find_shortage()

    def find_shortage(self) -> Shortage | None:
        """Return a file system that is nearly full, None while there is none. Waits for none that does not answer."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._period_s:
            return None
        self._looked_s = now_s
        return next(filter(None, [watched.look() for watched in self._watched]), None)


class _Watched:
    """One file system, asked by a thread of its own: where its NFS server is gone, only that thread waits."""

    def __init__(self, path: Path, read: Callable[[Path], Room], patience_s: float) -> None:
        self._path, self._read, self._patience_s = path, read, patience_s
        self._room: Room | None = None
        self._left_before: int | None = None
        self._asking: threading.Thread | None = None

    def look(self) -> Shortage | None:
        """Return the shortage that the last answer tells."""
        if self._asking is None or not self._asking.is_alive():
            self._room = None
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
        self._asking.join(self._patience_s)
        if self._room is None:
            return None
        left, size = self._room
        reserve = min(RESERVE_BYTES, int(size * RESERVE_SHARE))
        self._left_before = left if self._left_before is None else self._left_before
        if left >= reserve:
            return None
        used = max(0, self._left_before - left)
        sentence = (
            f"The file system of {self._path} has only {_describe(left)} left, less than the {_describe(reserve)} "
            f"that an agent leaves to its node; {_describe(used)} went since the session's launch. Free some room, or "
            "let the script write less while it is tuned (it sees ADVISOR_TUNING=1)."
        )
        return Shortage(sentence, is_sessions_own=2 * used > reserve)

    def _ask(self) -> None:
        with suppress(OSError):
            self._room = self._read(self._path)


def _describe(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
