"""Puts a session's own knobs where the program reads them on this node: words, variables, and copies of files."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w
import yaml

from advisor.protocol.base import Value
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.key_files import read_tree, set_keys
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.settling import list_file_values, list_variables, replace_path, settle
from advisor.protocol.training.workload import Workload
from agent.backends.launch import SessionPlace, name_working_dir
from agent.errors import Unlaunchable
from agent.files import DIRECT, Files

_LARGEST = 10 * 2**20
"""Characters of a configuration file that is read at most."""


def settle_assignment(assignment: Assignment, place: SessionPlace) -> Assignment:
    """Return the assignment with its own knobs in its command, its environment and copies of its files.

    Raises Unlaunchable naming the file or key that is missing on this node.
    """
    workload = assignment.workload
    if not workload.own:
        return assignment
    settled = settle(workload, assignment.cold)
    edits = list_file_values(workload, assignment.cold)
    command = _name_copies(
        settled.command, edits, name_working_dir(assignment), place.session_dir, place.files
    )
    environment = {**settled.environment, **list_variables(workload.own, assignment.cold)}
    return assignment.model_copy(
        update={"workload": settled.model_copy(update={"command": command, "environment": environment})}
    )


def settle_command(
    own: tuple[OwnKnob, ...], changes: Mapping[str, Value], command: Sequence[str], working_dir: Path
) -> list[str]:
    """Return a real training's command with its own knobs in it; copies of its files lie in a new folder.

    Raises Unlaunchable naming the file or key that is missing, ValueError naming an option that the command lacks.
    """
    # The command that is typed now says what it has today, whatever it had when it was tuned.
    today = tuple(knob.model_copy(update={"baseline": None}) for knob in own)
    workload = Workload(command=tuple(command), own=today)
    edits = list_file_values(workload, changes)
    folder = Path(tempfile.mkdtemp(prefix="advisor-run-")) if edits else working_dir
    words = _name_copies(settle(workload, changes).command, edits, working_dir, folder, DIRECT)
    return list(words)


def _name_copies(
    command: tuple[str, ...],
    edits: Mapping[str, Mapping[str, Value]],
    working_dir: Path,
    folder: Path,
    files: Files,
) -> tuple[str, ...]:
    for path, values in edits.items():
        # A folder of its own: what an argument lies in is protected, and the session's own folder must not be.
        copy = folder / "changed" / path.replace("/", "_")
        replaced = replace_path(command, path, str(copy))
        if replaced == command:
            raise Unlaunchable(
                f"The command does not name {path}, so that the script would not read the changed copy: name the file "
                "as the command does."
            )
        _write_copy(working_dir / path, values, copy, files)
        command = replaced
    return command


def _write_copy(path: Path, values: Mapping[str, Value], copy: Path, files: Files) -> None:
    text = _read(path, files)
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        copy.write_text(change_keys(text, path.suffix, values))
    except (ValueError, KeyError, TypeError) as error:
        raise Unlaunchable(f"{path}: {error}") from error


def _read(path: Path, files: Files) -> str:
    if not files.is_file(path):
        raise Unlaunchable(f"The file {path} of the job's own knobs does not exist on this node.")
    return files.read_beginning(path, _LARGEST)


def change_keys(text: str, suffix: str, values: Mapping[str, Value]) -> str:
    """Return a JSON, YAML or TOML text with other values at these dotted keys.

    Raises ValueError naming a key that the file does not hold.
    """
    tree = read_tree(text, suffix)
    set_keys(tree, values)
    if suffix == ".toml" and isinstance(tree, dict):
        return tomli_w.dumps(tree)
    return json.dumps(tree, indent=2) if suffix == ".json" else str(yaml.safe_dump(tree, sort_keys=False))
