"""A lab's ledger on disk: JSON lines that are only ever added to, each with the digest of the one before.

Writers take turns by a lock on the file. A line is there once its newline is: what a kill or a full disk left behind
the last newline is no entry, and the next writer takes it off.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from advisor.lab.rules import Lab, read_lab
from advisor.protocol.lab import Adopted, Ended, Entry, Opened, Started
from advisor.protocol.reading import Unreadable, read_document

_PLACE = Path(".advisor", "lab.jsonl")
Event = Opened | Started | Ended | Adopted


class LedgerFault(Exception):
    """The ledger cannot be read, trusted or written; the message says what to do."""


class Ledger:
    """The ledger of the lab of a directory."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve() / _PLACE

    def exists(self) -> bool:
        """Whether there is one."""
        return self.path.exists()

    def open_lab(self, opened: Opened, now: datetime) -> None:
        """Begin a ledger. Raises LedgerFault where there is one, or none can be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(exist_ok=False)
        except FileExistsError:
            raise LedgerFault(
                f"{self.path} holds a lab already. `advisor lab status` says how it stands; give another --lab DIR to "
                "open one beside it."
            ) from None
        except OSError as error:
            raise LedgerFault(
                f"{self.path} cannot be written: {error.strerror}. Give another --lab DIR."
            ) from error
        with self._locked() as file:
            self._write(file, 0, [], opened, now)

    def read(self) -> Lab:
        """Return what stands in it. Raises LedgerFault where it is missing, or not as it was written."""
        with self._locked() as file:
            return self._parse(file)[0]

    def append(self, now: datetime, make: Callable[[Lab], Event]) -> Lab:
        """Add the entry that `make` makes of what stands there, alone at the file; return the lab with it.

        Raises LedgerFault; then nothing is added.
        """
        with self._locked() as file:
            lab, entries, end = self._parse(file)
            added = self._write(file, end, entries, make(lab), now)
            return read_lab([*entries, added])

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        try:
            file = self.path.open("r+b", buffering=0)
        except OSError as error:
            raise LedgerFault(
                f"There is no lab at {self.path} ({error.strerror}): `advisor lab open` begins one, --lab DIR names "
                "another place."
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _parse(self, file: BinaryIO) -> tuple[Lab, list[Entry], int]:
        """The lab, its entries, and where the last one ends."""
        text = file.read()
        end = text.rfind(b"\n") + 1
        entries: list[Entry] = []
        for number, line in enumerate(text[:end].splitlines(), 1):
            before = entries[-1].digest if entries else ""
            try:
                entry = read_document(Entry, line.decode())
                said = json.loads(line)
            except (Unreadable, ValueError) as error:
                raise self._refuse(number, "cannot be read") from error
            if _digest(said) != entry.digest:
                raise self._refuse(number, "is not what was written: somebody edited it")
            if entry.before != before:
                raise self._refuse(number, "does not follow the line before it: one was taken out or put in")
            entries.append(entry)
        try:
            return read_lab(entries), entries, end
        except ValueError as error:
            raise LedgerFault(f"{self.path}: {error}. Open another lab: --lab DIR.") from error

    def _refuse(self, number: int, why: str) -> LedgerFault:
        return LedgerFault(
            f"Line {number} of {self.path} {why}. The lab's promise cannot be kept on it. Put the line back as it was, "
            "or open another lab: advisor lab open --lab DIR."
        )

    def _write(self, file: BinaryIO, end: int, entries: list[Entry], event: Event, now: datetime) -> Entry:
        before = entries[-1].digest if entries else ""
        said = Entry(at=now, event=event, before=before, digest="").model_dump(mode="json")
        said["digest"] = _digest(said)
        line = json.dumps(said, ensure_ascii=False).encode() + b"\n"
        try:
            file.truncate(end)
            file.seek(end)
            if file.write(line) != len(line):
                raise OSError(28, "No space left on device")
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(end)
            raise LedgerFault(
                f"{self.path} cannot be written: {error.strerror}. Make room on its disk; nothing that stands in it is "
                "lost."
            ) from error
        return read_document(Entry, line.decode())


def _digest(said: dict[str, object]) -> str:
    rest = {name: value for name, value in said.items() if name != "digest"}
    text = json.dumps(rest, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
