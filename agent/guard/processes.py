"""Finds and kills the processes of a session by walking /proc; standard library only, because the shim uses it.

A process group is not enough: torchrun gives every rank an OS session of its own, and scripts may double-fork.
What counts as ours is decided by ancestry, or by our marker in the environment a process was started with.
"""

import contextlib
import glob
import os
import signal
import time
from collections.abc import Callable

AGENT_MARKER = "ADVISOR_AGENT"
"""Environment variable that names the agent which started a process."""
SESSION_MARKER = "ADVISOR_SESSION"
"""Environment variable that names the session; the same on every node of the gang."""
_CLEANING_S = 2.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def read_parents() -> dict[int, int]:
    """Return every live process's parent; zombies are left out, for they run nothing."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        fields = _read_stat(int(entry))
        if fields is not None and fields[0] not in "ZX":
            parents[int(entry)] = int(fields[1])
    return parents


def read_state(pid: int) -> str:
    """Return the kernel's state letter of a process ("R", "S", "D", "T", …), or "" when it is gone."""
    fields = _read_stat(pid)
    return fields[0] if fields else ""


def read_name(pid: int) -> str:
    """Return a process's name as the kernel has it, at most 15 bytes; "" when it is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def count_running(root: int) -> int:
    """Return how many threads of `root` and its descendants run, or wait for a processor, at this moment."""
    tasks = (
        task
        for pid in [root, *list_descendants(root)]
        for task in glob.glob(f"{pid}/task/*", root_dir="/proc")
    )
    return sum((_read_stat(task) or [""])[0] == "R" for task in tasks)


def read_cpu_s(pid: int) -> float | None:
    """Return the CPU seconds that a process has used so far, None when it is gone."""
    fields = _read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS if fields else None


def _read_stat(pid: int | str) -> list[str] | None:
    """Of a process, or of what else has such a file: a thread's folder."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may itself hold spaces and parentheses.
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def list_descendants(root: int) -> list[int]:
    """Return every live descendant of `root`, itself excluded, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in read_parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    frontier = [root]
    while frontier:
        for child in children.get(frontier.pop(0), ()):
            found.append(child)
            frontier.append(child)
    return found


def list_marked(**markers: str) -> list[int]:
    """Return live processes that were started with all these environment variables, this one excluded."""
    wanted = {f"{name}={value}".encode() for name, value in markers.items()}
    found = []
    for pid in read_parents():
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted <= set(file.read().split(b"\0")):
                    found.append(pid)
        except OSError:
            continue
    return found


def is_module(pid: int, module: str) -> bool:
    """Whether a process was started as `python -m module`."""
    return _read_words(pid).endswith(b"\0-m\0" + module.encode() + b"\0")


def cleans_up(pid: int) -> bool:
    """Whether a process only waits for others to end, to delete the shared memory that they leave (/dev/shm)."""
    words = _read_words(pid)
    return b"multiprocessing.resource_tracker" in words or b"torch_shm_manager\0" in words


def _read_words(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def kill_until_none(list_them: Callable[[], list[int]], timeout_s: float) -> list[int]:
    """Kill what `list_them` returns, again and again until it returns nothing; return who is left at the timeout.

    Each round stops all processes before it kills any, so that none forks away between the two. SIGTERM would be
    pointless: torchrun forwards it and then waits for ranks that may hang. Who cleans up after the others is killed
    two seconds after they are gone, if it has not left by itself.
    """
    deadline = time.monotonic() + timeout_s
    cleaning_since_s: float | None = None
    while True:
        pids = list_them()
        victims = [pid for pid in pids if not cleans_up(pid)]
        if not victims:
            now_s = time.monotonic()
            cleaning_since_s = now_s if cleaning_since_s is None else cleaning_since_s
            victims = pids if now_s - cleaning_since_s > _CLEANING_S else []
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
        if not pids or time.monotonic() > deadline:
            return pids
        time.sleep(0.01)
