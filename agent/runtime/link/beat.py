"""The progress beat: 32 bytes that each rank overwrites in place, so that an agent can see a hung rank from outside.

Layout (little endian, `<4sIqHHId`): magic b"FAB1", global rank, step, phase code, exchanges, process id,
time.monotonic() of the write. Standard library only: the agent's process imports this file without torch.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from typing import Optional

MAGIC = b"FAB1"
LAYOUT = struct.Struct("<4sIqHHId")
STEP = struct.Struct("<q")
STEP_AT = 8

SHORTEST_INTERVAL_S = 0.2

STARTING, TRAINING, WAITING, SWITCHING, WARMING_UP, TIMING, PROFILING, ENDED, COMPILING, CALIBRATING = range(
    10
)
PHASE_NAMES = (
    "starting", "training", "waiting", "switching", "warming_up", "timing", "profiling", "ended", "compiling",
    "calibrating",
)  # fmt: skip


@dataclass(frozen=True)
class Beat:
    """One rank's last sign of progress."""

    rank: int
    step: int
    """Training steps that this process had made at its last boundary."""
    phase: str
    """One of PHASE_NAMES; "waiting" means for the agent's next instruction or for another rank."""
    exchanges: int
    """With the other ranks, counted up to 65535 and again: between two steps they are the progress there is."""
    process_id: int
    monotonic_s: float
    """time.monotonic() on the rank's node: comparable with the agent's own on the same node."""


def locate(session_dir: str, rank: int) -> str:
    return os.path.join(session_dir, f"beat.{rank}")


class BeatWriter:
    """Holds the file open: a beat costs one pwrite, a few microseconds, and the step alone a store into memory."""

    def __init__(self, session_dir: str, rank: int) -> None:
        os.makedirs(session_dir, exist_ok=True)
        self._rank = rank
        self._phase = -1
        self._written_s = 0.0
        self._file = os.open(
            locate(session_dir, rank), os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644
        )
        write(self._file, rank, 0, STARTING, 0)
        try:
            # Behind a write that has its room on the disk: a store into a page without any would end the process.
            self._page: Optional[mmap.mmap] = mmap.mmap(self._file, LAYOUT.size)
        except (OSError, ValueError):
            self._page = None

    def write(self, step: int, phase: int, exchanges: int = 0) -> None:
        """Says where the rank is. The step is always told, so that it is exact however the process ends; the rest
        within one phase at most every 0.2 s, because short steps would pay for it."""
        if self._page is not None:
            STEP.pack_into(self._page, STEP_AT, step)
        now_s = time.monotonic()
        if phase == self._phase and now_s - self._written_s < SHORTEST_INTERVAL_S:
            return
        self._phase, self._written_s = phase, now_s
        write(self._file, self._rank, step, phase, exchanges)


def write(file: int, rank: int, step: int, phase: int, exchanges: int) -> None:
    """Overwrites the beat in an open file descriptor; a full disk must not end a training step, so errors pass."""
    try:
        counted = exchanges % 2**16
        os.pwrite(file, LAYOUT.pack(MAGIC, rank, step, phase, counted, os.getpid(), time.monotonic()), 0)
    except OSError:
        return


def read(path: str) -> Optional[Beat]:
    """The beat in `path`, or None when there is none yet or the file is something else."""
    try:
        # The folder is the script's to write in: a named pipe or a link there must not hold up or mislead the agent.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            raw = os.read(file, LAYOUT.size)
        finally:
            os.close(file)
    except OSError:
        return None
    if len(raw) != LAYOUT.size:
        return None
    magic, rank, step, phase, exchanges, process_id, monotonic_s = LAYOUT.unpack(raw)
    if magic != MAGIC or phase >= len(PHASE_NAMES):
        return None
    return Beat(rank, step, PHASE_NAMES[phase], exchanges, process_id, monotonic_s)
