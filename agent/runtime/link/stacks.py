"""Where a rank's threads are: on a signal of the agent, the interpreter writes every thread's stack into a file.

The handler is C and runs in whatever state Python is in: in a collective, in a lock, without the GIL. A realtime
signal, because scripts and job schedulers use SIGUSR1 and SIGUSR2 themselves. Standard library only.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import List, Tuple

OFFSET = 9
"""The signal is SIGRTMIN + OFFSET."""


def choose_signal() -> int:
    return int(signal.SIGRTMIN) + OFFSET


def arm(session_dir: str, rank: int) -> None:
    """Answers the signal from now on; the file's name tells the agent which process may be asked."""
    try:
        file = os.open(
            os.path.join(session_dir, f"stacks.{rank}.{os.getpid()}"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0),
            0o600,
        )
        faulthandler.register(choose_signal(), file=file, all_threads=True)
    except (OSError, ValueError, RuntimeError, AttributeError):
        return  # a rank without stacks still trains


def list_armed(session_dir: str) -> List[Tuple[int, int, str]]:
    """Rank, process id and file of every process that has armed itself, in rank order."""
    found = []
    for name in os.listdir(session_dir):
        parts = name.split(".")
        if len(parts) == 3 and parts[0] == "stacks" and parts[1].isdigit() and parts[2].isdigit():
            found.append((int(parts[1]), int(parts[2]), os.path.join(session_dir, name)))
    return sorted(found)
