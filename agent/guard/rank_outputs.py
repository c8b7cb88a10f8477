"""What every rank of a session writes, line by line into the session's log, each line with its rank.

Ranks that our runtime runs in hand over a pipe each (`agent/runtime/link/rank_output.py`). Everything else of the
session (launchers, shells, other programs) writes into one common pipe, whose lines have no rank. A rank keeps what it
hands over: it may empty the pipe, or set its flags. So the guard opens every pipe anew, and no read of it waits.
Standard library only.
"""

import fcntl
import os
import selectors
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agent.guard.account import Account
from agent.guard.rank_folder import open_socket

SOCKET = "output"
"""Name of the socket in the session's folder."""
_LONGEST_LINE = 64 * 1024
"""Bytes after which a line is passed on without its end."""
_CHUNK = 65536
_MOST_PIPES = 512
_MOST_AT_ONCE = 64
"""Messages that are taken before the guard looks after something else."""
_LARGEST_PIPE = 2**20
"""Bytes that a pipe of an ordinary user holds."""


def read_rest(pipe: int, feed: Callable[[bytes], None]) -> None:
    """Pass on what a pipe holds, once no process of the session is: another one may still write into it."""
    with suppress(OSError):
        for _ in range(_LARGEST_PIPE // _CHUNK):
            if not (data := os.read(pipe, _CHUNK)):
                return
            feed(data)


def _reopen(pipe: int) -> int | None:
    """Return a descriptor of the guard's own for a pipe's reading end; None for whatever else was handed over."""
    mode = fcntl.fcntl(pipe, fcntl.F_GETFL)
    readable = mode & os.O_ACCMODE != os.O_WRONLY and not mode & os.O_PATH
    if not stat.S_ISFIFO(os.fstat(pipe).st_mode) or not readable:
        return None
    return os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class TaggedLines:
    """Whole lines of one rank, `[rank 3] ` before each; a carriage return ends a line, as progress bars need."""

    def __init__(self, rank: int, write: Callable[[bytes], None]) -> None:
        self._tag = f"[rank {rank}] ".encode()
        self._write = write
        self._rest = b""
        self.fed_at_s = 0.0

    def feed(self, data: bytes, now_s: float) -> None:
        """Pass on the lines that are complete."""
        self.fed_at_s = now_s
        lines = (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, end, self._rest = lines.rpartition(b"\n")
        if end:
            self._write(self._tag + whole.replace(b"\n", b"\n" + self._tag) + b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self.flush()

    def flush(self) -> None:
        """Pass on a line that has no end yet."""
        if self._rest:
            self._write(self._tag + self._rest + b"\n")
        self._rest = b""


class RankOutputs:
    """The pipes that came in so far, in the guard's own selector."""

    def __init__(
        self,
        folder: Path,
        write: Callable[[bytes], None],
        selector: selectors.BaseSelector,
        account: Account | None = None,
    ) -> None:
        """Listen in `folder` to the processes of `account`. Raises OSError where that is not possible."""
        self._write, self._selector = write, selector
        self._socket = open_socket(folder, SOCKET, socket.SOCK_DGRAM, account)
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ)
        self._lines: dict[int, TaggedLines] = {}
        self.path = folder / SOCKET

    def read(self, ready: set[int], now_s: float) -> None:
        """Take new pipes, pass on what the ready ones have, and lines that stayed without an end for a second."""
        if self._socket.fileno() in ready:
            for pipe in self._take_pipes():
                self._selector.register(pipe, selectors.EVENT_READ)
        for pipe, lines in list(self._lines.items()):
            if pipe in ready:
                self._read_pipe(pipe, lines, now_s)
            elif now_s - lines.fed_at_s > 1.0:
                lines.flush()

    def drain(self) -> None:
        """Everything that is left, once no process of the session is."""
        self._take_pipes()
        for pipe, lines in list(self._lines.items()):
            read_rest(pipe, lambda data, lines=lines: lines.feed(data, 0.0))  # type: ignore[misc]
            lines.flush()
            os.close(pipe)
        self._lines.clear()
        self._socket.close()

    def _take_pipes(self) -> list[int]:
        taken = []
        with suppress(OSError):
            for _ in range(_MOST_AT_ONCE):
                rank, pipes, _, _ = socket.recv_fds(self._socket, 16, 1)
                for pipe in pipes:
                    own = self._take(rank, pipe)
                    os.close(pipe)
                    if own is not None:
                        taken.append(own)
        return taken

    def _take(self, rank: bytes, pipe: int) -> int | None:
        if not rank.isdigit() or len(self._lines) >= _MOST_PIPES:
            return None
        with suppress(OSError):
            own = _reopen(pipe)
            if own is not None:
                self._lines[own] = TaggedLines(int(rank), self._write)
            return own
        return None

    def _read_pipe(self, pipe: int, lines: TaggedLines, now_s: float) -> None:
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return  # a process of the session was faster
        if data:
            lines.feed(data, now_s)
            return
        lines.flush()
        self._selector.unregister(pipe)
        os.close(pipe)
        del self._lines[pipe]
