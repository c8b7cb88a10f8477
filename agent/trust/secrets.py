"""The agent's secrets: what proves it to its server, kept from other processes; and files that are always whole."""

import ctypes
import os
import secrets
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file that only the agent's user can read, in place of what is there."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


TOKEN_VARIABLE = "ADVISOR_AGENT_TOKEN"  # noqa: S105 - the variable's name, not a token
_PR_SET_DUMPABLE = 4
_SECRET_BYTES = 32
_ENVIRONMENT_START_FIELD = 47
"""Of /proc/self/stat, counted from the process's state."""


def read_node_secret(work_dir: Path) -> str:
    """Return the secret that proves this agent to its server, made when it is first asked for.

    It lies on the disk before anybody is told: an agent that is killed while it registers is still the same one.
    """
    path = work_dir / "secret"
    if not path.exists():
        replace_file(path, secrets.token_urlsafe(_SECRET_BYTES))
    return path.read_text().strip()


def take_token_from_environment() -> str:
    """Return the token of the environment variable ("" without one), and erase it there.

    Removing a variable leaves its text in the memory that /proc/<agent>/environ shows, so that is overwritten.
    """
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if token:
        shown = Path("/proc/self/environ").read_bytes()
        entry = f"{TOKEN_VARIABLE}={token}".encode()
        start = int(
            Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[_ENVIRONMENT_START_FIELD]
        )
        for offset in _find_all(b"\0" + shown, b"\0" + entry + b"\0"):
            ctypes.memset(start + offset, 0, len(entry))
    return token


def hide_memory() -> None:
    """Close /proc/<agent>/{environ,mem,fd,…} to processes of the same user, and leave no core dump."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _find_all(text: bytes, pattern: bytes) -> list[int]:
    found, start = [], text.find(pattern)
    while start >= 0:
        found.append(start)
        start = text.find(pattern, start + 1)
    return found
