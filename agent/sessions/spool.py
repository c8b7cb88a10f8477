"""Race reports on disk until the server has decided about them: a measurement outlives agent and server crashes."""

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import ValidationError

from advisor.protocol.base import Message

_TRAILER = struct.Struct("<Q32s")
"""Length and SHA-256 of what stands before it."""
_SUFFIX = ".report"

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
    """A folder of reports; one agent writes to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, report: SpooledReport) -> SpoolEntry:
        """Write the report so that it is whole or absent after a crash or a power loss at any moment."""
        name = hashlib.sha256(f"{report.session_id}\0{report.race_id}".encode()).hexdigest()[:32]
        path = self._folder / (name + _SUFFIX)
        body = report.model_dump_json().encode()
        unfinished = path.with_suffix(".tmp")
        with open(unfinished, "wb") as file:
            file.write(body + _TRAILER.pack(len(body), hashlib.sha256(body).digest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return SpoolEntry(path, report)

    def list_waiting(self) -> Iterator[SpoolEntry]:
        """Return every whole report; a torn one is logged, set aside and otherwise ignored."""
        for path in sorted(self._folder.glob("*" + _SUFFIX)):
            report = _read(path)
            if report is None:
                log.warning("A torn report was set aside: its race counts as not run.", file=str(path))
                path.rename(path.with_suffix(".torn"))
            else:
                yield SpoolEntry(path, report)

    def remove(self, entry: SpoolEntry) -> None:
        """Forget a report that the server accepted or refused for good."""
        entry.path.unlink(missing_ok=True)


def _read(path: Path) -> SpooledReport | None:
    data = path.read_bytes()
    body, trailer = data[: -_TRAILER.size], data[-_TRAILER.size :]
    if len(trailer) != _TRAILER.size or trailer != _TRAILER.pack(len(body), hashlib.sha256(body).digest()):
        return None
    try:
        return SpooledReport.model_validate_json(body)
    except ValidationError:
        return None
