"""Watches how much room the file systems have left that a session writes to, so that no script fills a node's disk."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

RESERVE_BYTES = 2 * 2**30
"""A session ends before less than this is left…"""
RESERVE_SHARE = 0.05
"""…or this share of a small file system."""

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

    def __init__(self, paths: Iterable[Path], read: Callable[[Path], Room] = read_room) -> None:
        """`paths` are directories that the session's processes can write to."""
        self._read = read
        self._paths = list(dict.fromkeys(paths))
        self._left_before = {path: read(path)[0] for path in self._paths}

    def find_shortage(self) -> Shortage | None:
        """Return a file system that is nearly full, None while there is none. Takes microseconds."""
        for path in self._paths:
            try:
                left, size = self._read(path)
            except OSError:
                continue
            reserve = min(RESERVE_BYTES, int(size * RESERVE_SHARE))
            if left < reserve:
                used = max(0, self._left_before[path] - left)
                sentence = (
                    f"The file system of {path} has only {_describe(left)} left, less than the {_describe(reserve)} "
                    f"that an agent leaves to its node; {_describe(used)} went since the session's launch. Free some "
                    "room, or let the script write less while it is tuned (it sees ADVISOR_TUNING=1)."
                )
                return Shortage(sentence, is_sessions_own=2 * used > reserve)
        return None


def _describe(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
