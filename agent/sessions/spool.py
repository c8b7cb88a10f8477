"""Race reports on disk until the server has decided about them: a measurement outlives agent and server crashes.

What the server will never decide about (it, or a proxy, refuses the very message) is set aside in the quarantine, a
folder of its own, each report beside a sentence that says why. Both folders are bounded: of more than 1,000 reports or
256 MiB that wait, the oldest are set aside; of more that were set aside, the oldest are deleted, and the log says so.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from advisor.protocol.base import Message
from advisor.protocol.reading import Unreadable, read_document

_TRAILER = struct.Struct("<Q32s")
"""Length and SHA-256 of what stands before it."""
_SUFFIX = ".report"
_REASON = ".reason"
MOST_REPORTS = 1_000
MOST_BYTES = 256 * 2**20

log = structlog.get_logger(__name__)


class SpooledReport(Message):
    """One report as it waits to be handed in."""

    session_id: str
    race_id: str
    body: str
    """JSON of the RaceReport."""


@dataclass(frozen=True)
class SpoolEntry:
    """A report and the file it lies in."""

    path: Path
    report: SpooledReport


class Spool:
    """The two folders in an agent's work directory; one agent writes to them."""

    def __init__(
        self, work_dir: Path, *, most_reports: int = MOST_REPORTS, most_bytes: int = MOST_BYTES
    ) -> None:
        """Make the folders where they do not exist; each holds at most so many reports and bytes."""
        self.folder, self.quarantine = locate_reports(work_dir)
        self._most_reports, self._most_bytes = most_reports, most_bytes
        for folder in (self.folder, self.quarantine):
            folder.mkdir(parents=True, exist_ok=True)

    def put(self, report: SpooledReport) -> SpoolEntry:
        """Write the report so that it is whole or absent after a crash or a power loss at any moment."""
        name = hashlib.sha256(f"{report.session_id}\0{report.race_id}".encode()).hexdigest()[:32]
        path = self.folder / (name + _SUFFIX)
        body = report.model_dump_json().encode()
        unfinished = path.with_suffix(".tmp")
        with open(unfinished, "wb") as file:
            file.write(body + _TRAILER.pack(len(body), hashlib.sha256(body).digest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        _sync(self.folder)
        for old in self._list_beyond_bounds(self.folder):
            self._move(old, "More reports waited for the server than the spool holds.")
        return SpoolEntry(path, report)

    def list_waiting(self) -> Iterator[SpoolEntry]:
        """Return every whole report; a torn one is set aside and otherwise ignored."""
        for path in list_reports(self.folder):
            try:
                report = _read(path)
            except FileNotFoundError:
                continue  # a session's thread has handed it in meanwhile
            if report is None:
                self._move(path, "The report is torn: its race counts as not run.")
            else:
                yield SpoolEntry(path, report)

    def remove(self, entry: SpoolEntry) -> None:
        """Forget a report that the server has decided about."""
        entry.path.unlink(missing_ok=True)

    def set_aside(self, entry: SpoolEntry, reason: str) -> None:
        """Put a report that is not to be handed in again into the quarantine, with a sentence that says why."""
        self._move(entry.path, reason)

    def _move(self, path: Path, reason: str) -> None:
        place = self.quarantine / path.name
        try:
            os.replace(path, place)
        except FileNotFoundError:
            return
        place.with_suffix(_REASON).write_text(f"{reason}\n")
        _sync(self.quarantine)
        _sync(self.folder)
        log.warning("A report was set aside.", file=str(place), because=reason)
        for old in self._list_beyond_bounds(self.quarantine):
            old.unlink(missing_ok=True)
            old.with_suffix(_REASON).unlink(missing_ok=True)
            log.error("The quarantine is full: its oldest report was deleted.", file=str(old))

    def _list_beyond_bounds(self, folder: Path) -> list[Path]:
        """The oldest reports, as many as there are too many."""
        found = [(facts, path) for path in list_reports(folder) if (facts := _find_facts(path)) is not None]
        dated = sorted(found, key=lambda x: x[0].st_mtime_ns)
        count, size = len(dated), sum(facts.st_size for facts, _ in dated)
        beyond: list[Path] = []
        for facts, path in dated[:-1]:
            if count <= self._most_reports and size <= self._most_bytes:
                break
            beyond.append(path)
            count, size = count - 1, size - facts.st_size
        return beyond


def locate_reports(work_dir: Path) -> tuple[Path, Path]:
    """Return the folder of the reports that wait, and the quarantine."""
    return work_dir / "spool", work_dir / "quarantine"


def list_reports(folder: Path) -> list[Path]:
    """Return the reports that lie in one of the folders; none where there is no such folder."""
    return sorted(folder.glob("*" + _SUFFIX))


def read_reason(report: Path) -> str:
    """Return the sentence that says why a report lies in the quarantine."""
    try:
        return report.with_suffix(_REASON).read_text().strip()
    except OSError:
        return "Nothing says why."


def _find_facts(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> SpooledReport | None:
    data = path.read_bytes()
    body, trailer = data[: -_TRAILER.size], data[-_TRAILER.size :]
    if len(trailer) != _TRAILER.size or trailer != _TRAILER.pack(len(body), hashlib.sha256(body).digest()):
        return None
    try:
        return read_document(SpooledReport, body)
    except Unreadable:
        return None
