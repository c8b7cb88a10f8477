"""Gives a rank's output a pipe of its own, so that the session's log says which rank wrote a line.

The pipe's reading end goes to the guard, which reads all of them: nothing is lost when the rank is killed, no thread
runs in the rank, and what the rank starts writes into the same pipe. Output that the script's launcher has sent
elsewhere (torchrun --redirects) stays there.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Mapping

OUTPUT = "ADVISOR_OUTPUT"
"""The guard's socket, and the inode of the pipe that all processes of the session write to, separated by a colon."""
_TIMEOUT_S = 5.0


def take_own_output(rank: int, variables: Mapping[str, str]) -> None:
    """Replaces standard output and error where they are the session's common pipe; leaves them where anything fails."""
    path, _, inode = variables.get(OUTPUT, "").rpartition(":")
    shared = [fd for fd in (1, 2) if path and _inode_of(fd) == inode]
    if not shared:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    reading, writing = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(_TIMEOUT_S)
            line.connect(path)
            socket.send_fds(line, [str(rank).encode()], [reading])
        for fd in shared:
            os.dup2(writing, fd)
    except OSError:
        return
    finally:
        os.close(reading)
        os.close(writing)


def flush_output() -> None:
    """Before a rank ends without its interpreter's own ending."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _inode_of(fd: int) -> str:
    try:
        return str(os.fstat(fd).st_ino)
    except OSError:
        return ""


def say(sentence: str) -> None:
    """Something that the script's owner should know."""
    print(f"fleet advisor: {sentence}", file=sys.stderr, flush=True)
