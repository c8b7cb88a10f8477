"""What every rank of a session writes, line by line into the session's log, each line with its rank.

Ranks that our runtime runs in hand over a pipe each (`agent/runtime/link/rank_output.py`). Everything else of the
session (launchers, shells, other programs) writes into one common pipe, whose lines have no rank. Standard library
only.
"""

import os
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SOCKET = "output"
"""Name of the socket in the folder that the ranks may write to."""
_LONGEST_LINE = 64 * 1024
"""Bytes after which a line is passed on without its end."""
_CHUNK = 65536


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
        self, folder: Path, write: Callable[[bytes], None], selector: selectors.BaseSelector
    ) -> None:
        """Listen in `folder`. Raises OSError where that is not possible."""
        self._write, self._selector = write, selector
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = folder / SOCKET
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        # The ranks may run as another user; the folder is theirs alone.
        path.chmod(0o666)
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ)
        self._lines: dict[int, TaggedLines] = {}
        self.path = path

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
            os.set_blocking(pipe, False)
            with suppress(OSError):
                while data := os.read(pipe, _CHUNK):
                    lines.feed(data, 0.0)
            lines.flush()
            os.close(pipe)
        self._lines.clear()
        self._socket.close()

    def _take_pipes(self) -> list[int]:
        taken = []
        with suppress(OSError):
            while True:
                rank, pipes, _, _ = socket.recv_fds(self._socket, 16, 1)
                for pipe in pipes:
                    if rank.isdigit():
                        self._lines[pipe] = TaggedLines(int(rank), self._write)
                        taken.append(pipe)
                    else:
                        os.close(pipe)
        return taken

    def _read_pipe(self, pipe: int, lines: TaggedLines, now_s: float) -> None:
        data = os.read(pipe, _CHUNK)
        if data:
            lines.feed(data, now_s)
            return
        lines.flush()
        self._selector.unregister(pipe)
        os.close(pipe)
        del self._lines[pipe]
