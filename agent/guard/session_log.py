"""The log of a session on this node: its first and its last part on disk, and its news for the server.

Standard library only: the shim writes, the agent reads. A script that prints a gigabyte costs `HEAD + 2 × TAIL` bytes.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from advisor.protocol.plain_text import clean_text

HEAD_BYTES = 256 * 1024
"""Kept from the beginning: imports, arguments, the first error."""
TAIL_BYTES = 1024 * 1024
"""Kept from the end, once or twice over."""

_RANK = re.compile(r"^\[rank \d+\] ", re.MULTILINE)


class LogWriter:
    """Appends to `log` up to HEAD_BYTES, then to `log.tail`, which becomes `log.tail.old` when it is full."""

    def __init__(self, folder: Path, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._folder = folder
        self._tail_bytes = tail_bytes
        self._room = head_bytes
        self._in_head = True
        self._file = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Append `data`; a full disk must not end a training run, so what cannot be written is dropped."""
        while data:
            part, data = data[: self._room], data[self._room :]
            try:
                if self._room == 0:
                    self._rotate()
                    part, data = data[: self._room], data[self._room :]
                os.write(self._file, part)
            except OSError:
                return
            self._room -= len(part)

    def _rotate(self) -> None:
        tail = self._folder / "log.tail"
        if not self._in_head:
            with suppress(FileNotFoundError):
                os.replace(tail, self._folder / "log.tail.old")
        fresh = os.open(tail, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.close(self._file)
        self._file, self._in_head, self._room = fresh, False, self._tail_bytes


class LogReader:
    """Reads what was added since the last call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[int, int] = {}
        """Bytes read so far, by inode: a file keeps its inode when it is renamed."""

    def read_news(self, most: int) -> str:
        """Return the new text, cleaned; of more than `most` characters the beginning is left out, and that is said."""
        text = clean_output(b"".join(self._read_from(name) for name in ("log", "log.tail.old", "log.tail")))
        if len(text) <= most:
            return text
        return f"[… {len(text) - most} characters left out]\n" + text[-most:]

    def _read_from(self, name: str) -> bytes:
        try:
            with open(self._folder / name, "rb") as file:
                facts = os.fstat(file.fileno())
                inode, read = facts.st_ino, self._offsets.get(facts.st_ino, 0)
                file.seek(read if read <= facts.st_size else 0)  # else a new file got a deleted one's inode
                data = file.read()
                self._offsets[inode] = file.tell()
                return data
        except OSError:
            return b""


def read_log_tail(folder: Path, most: int) -> str:
    """Return the last `most` characters of the session's log, cleaned."""
    return LogReader(folder).read_news(10**9)[-most:]


def strip_ranks(text: str) -> str:
    """Return the log as the processes wrote it, without what says which rank wrote a line."""
    return _RANK.sub("", text)


def clean_output(data: bytes) -> str:
    """Decode output of unknown origin, so that it is text and no more.

    A progress bar rewrites its line with carriage returns: they become line ends.
    """
    return clean_text(data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"))
