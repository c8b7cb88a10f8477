"""The files of an advice on disk: one format's file, or the bundle of all of them."""

import re
from collections.abc import Mapping
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.exporters import export_bundle
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job


def default_directory(job: Job) -> Path:
    """Return `advisor-<name of the job>`, with what no directory's name should hold replaced."""
    return Path("advisor-" + re.sub(r"[^\w.+-]+", "-", job.spec.name or job.id))


def write_bundle(advice: Advice, job: Job, directory: Path) -> list[Path]:
    """Write the advised strategy in every format, and a summary; returns the paths.

    The exporters are pure functions of advice and job, so the files are made here and not asked for one by one.
    Raises `CommandFailed` where the directory cannot be written, or holds files of these names that are not ours.
    """
    contents = {name: text.encode() for name, text in export_bundle(advice, job).items()}
    if not _holds_bundle(directory) and (taken := [n for n in contents if (directory / n).exists()]):
        raise CommandFailed(
            Exit.INTERNAL,
            f"The strategy's files are not written: {directory} holds a {taken[0]} that is not of an export.",
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
            f"The strategy's files cannot be written: {error}.",
            "Write them elsewhere: advisor export last -o DIRECTORY",
        ) from error
    return written


def _holds_bundle(directory: Path) -> bool:
    try:
        return b'"fleet-advisor/strategy"' in (directory / "strategy.json").read_bytes()
    except OSError:
        return False
