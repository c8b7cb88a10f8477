"""The files of an advice on disk: one format's file, or the bundle of all of them."""

import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from advisor.answers.report import export_bundle
from advisor.cli.exits import CommandFailed, Exit
from advisor.exporters import FORMATS
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job


def default_directory(job: Job) -> Path:
    """Return `advisor-<name of the job>`, with what no directory's name should hold replaced."""
    return name_directory(job.spec.name or job.id)


def name_directory(name: str) -> Path:
    """Return the directory of a job of that name."""
    return Path("advisor-" + re.sub(r"[^\w.+-]+", "-", name))


def require_room(directory: Path) -> None:
    """Raise `CommandFailed`, before anything is measured, where `write_bundle` could not write into `directory`."""
    if reason := _try_to_write(directory):
        pass
    elif taken := _find_foreign(directory, [info.filename for info in FORMATS.values()]):
        reason = f"{directory} holds a {taken} that is not of an export."
    else:
        return
    raise CommandFailed(
        Exit.USAGE,
        f"--output {directory}: {reason}",
        "Name another directory; it is made where there is none.",
    )


def _try_to_write(directory: Path) -> str:
    """Return why no file can be made in the directory, or where it is to be made; empty where that works."""
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir():
        return f"{nearest} is not a directory."
    try:
        # Root passes every permission check, also on a read-only file system: only a trial write tells.
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"advisor")
    except OSError as error:
        return f"{nearest} takes no file ({error.strerror})."
    return ""


def write_bundle(advice: Advice, job: Job, directory: Path) -> list[Path]:
    """Write what the job's own training loads, and a report; returns the paths.

    The exporters are pure functions of advice and job, so the files are made here and not asked for one by one.
    Raises `CommandFailed` where the directory cannot be written, or holds files of these names that are not ours.
    """
    contents = export_bundle(advice, job)
    if taken := _find_foreign(directory, contents):
        raise CommandFailed(
            Exit.INTERNAL,
            f"The strategy's files are not written: {directory} holds a {taken} that is not of an export.",
            "Write them elsewhere: advisor export last -o DIRECTORY",
        )
    return write_files(contents, directory)


def write_files(contents: Mapping[str, bytes], directory: Path) -> list[Path]:
    """Write files by name; shell scripts can be run. Raises `CommandFailed` where that is not possible."""
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = directory / name
            path.write_bytes(content)
            if path.suffix == ".sh":
                path.chmod(0o755)
            written.append(path)
    except OSError as error:
        raise CommandFailed(
            Exit.INTERNAL,
            f"{', '.join(contents)} cannot be written: {error}.",
            "Name another place: --output, -o",
        ) from error
    return written


def _find_foreign(directory: Path, names: Iterable[str]) -> str | None:
    """Return the first of these files that the directory holds without being an export's."""
    with suppress(OSError):
        if b'"fleet-advisor/strategy"' in (directory / "strategy.json").read_bytes():
            return None
    return next((name for name in names if (directory / name).exists()), None)
