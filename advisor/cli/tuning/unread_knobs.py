"""Own knobs that nothing reads: neither the command holds them, nor a script in the folder asks for them."""

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.protocol.asked.jobs import JobSpec

_MOST_FILES = 400
_READ = 2**20
"""Letters of a file that are looked at."""


def refuse_unread(spec: JobSpec, script: Path) -> None:
    """Raise `CommandFailed` for own knobs that nothing holds, where the script and the files beside it can be read."""
    asked = [knob.name for knob in spec.workload.own if not knob.at and not knob.words]
    if not asked or not script.is_file():
        return
    texts = list(islice(_read_sources(script, Path(spec.workload.working_dir)), _MOST_FILES))
    if len(texts) == _MOST_FILES:
        return
    for name in asked:
        if any(re.search(rf"[\"']{name}[\"']|ADVISOR_KNOB_{name}\b", text) for text in texts):
            continue
        option = rf"--{name.replace('_', '[-_]')}\b"
        found = next((m[0] for text in texts if (m := re.search(option, text))), None)
        hint = (
            f"{script.name} takes {found}: write it in the command with today's value."
            if found
            else f"Name an option that the command holds (--try '--option=…'), write ${{{name}}} in the command where "
            f'the value belongs, or ask for it in the script: fleet_advisor.knob("{name}", TODAY).'
        )
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{name} stands nowhere in the command, and {script.name} does not ask for it.",
            hint,
        )


def _read_sources(script: Path, folder: Path) -> Iterator[str]:
    """Yield the script's text and those of all Python files of the folder; environments in it are left out."""
    yield _read(script)
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__")) and not Path(root, name, "pyvenv.cfg").exists()
        ]
        yield from (_read(Path(root, name)) for name in files if name.endswith(".py"))


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as text:
            return text.read(_READ)
    except OSError:
        return ""
