"""Gives a rank's output a pipe of its own, so that the session's log says which rank wrote a line.

The pipe's reading end goes to the guard, which reads all of them: nothing is lost when the rank is killed, no thread
runs in the rank, and what the rank starts writes into the same pipe. Output that the script's launcher has sent
elsewhere (torchrun --redirects) stays there.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import sys
import traceback
from typing import Mapping

OUTPUT = "ADVISOR_OUTPUT"
"""The guard's socket, and the inode of the pipe that all processes of the session write to, separated by a colon."""
_TIMEOUT_S = 5.0
_PATIENCE_MS = 100


def take_own_output(rank: int, variables: Mapping[str, str]) -> None:
    """Replaces standard output and error where they are the session's common pipe; leaves them where anything fails."""
    path, _, inode = variables.get(OUTPUT, "").rpartition(":")
    shared = [fd for fd in (1, 2) if path and _inode_of(fd) == inode]
    if not shared:
        return
    flush_output()
    try:
        reading, writing = os.pipe()
    except OSError:
        return
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
        with contextlib.suppress(Exception):  # whatever the script has put in its place
            if stream is not None:
                stream.flush()


def _inode_of(fd: int) -> str:
    try:
        return str(os.fstat(fd).st_ino)
    except OSError:
        return ""


def say(sentence: str) -> None:
    """Something that the script's owner should know. Where it cannot be written, the training goes on without it."""
    _write(f"fleet advisor: {sentence}\n")


def say_traceback(error: BaseException) -> None:
    """Where something of ours failed."""
    _write("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def _write(text: str) -> None:
    stream = sys.stderr
    with contextlib.suppress(Exception):  # a full disk, a closed file, an object of the script's
        if type(stream) is not io.TextIOWrapper:
            if stream is not None:
                stream.write(text)
                stream.flush()
            return
        number = stream.fileno()
        if not _is_stuck(number):
            with contextlib.suppress(OSError):
                stream.flush()
            # Past its buffer: what cannot be written would stay there, for the script's own flush to fail at.
            os.write(number, text.encode(errors="replace"))


def _is_stuck(number: int) -> bool:
    """Whether nobody reads any more, which may end the process by a signal, or the reader keeps writers waiting."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return [(number, select.POLLOUT)] != poll.poll(_PATIENCE_MS)
