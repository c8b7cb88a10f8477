"""Puts own knobs where the program reads them on this node: words, variables, and copies of files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from advisor.protocol.base import Value
from advisor.protocol.training.command_options import find_option
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.settling import list_file_values, replace_path, settle
from advisor.protocol.training.workload import Workload
from agent.backends.launch import Wanted
from agent.errors import Unlaunchable
from agent.files import DIRECT, Files


def place_copies(wanted: Wanted) -> tuple[Wanted, dict[str, str]]:
    """Return a launch whose command names changed copies of its files, and their texts by their names.

    The names are those in the agent's part of the session's folder. Raises Unlaunchable naming the file or key that is
    missing on this node.
    """
    place, edits = wanted.place, list_file_values(wanted.assignment.workload, wanted.assignment.cold)
    if not edits:
        return wanted, {}
    words, copies = _copy_files(wanted.command.words, edits, wanted.working_dir, place.agent_dir, place.files)
    return replace(wanted, command=Command.read(words)), copies


def settle_command(
    own: tuple[OwnKnob, ...],
    changes: Mapping[str, Value],
    command: Sequence[str],
    working_dir: Path,
    folder: Path,
) -> tuple[list[str], dict[str, str]]:
    """Return a real training's command with its own knobs in it, and the texts of files that are to lie in `folder`.

    An option that the command lacks is added. Raises Unlaunchable naming the file or key that is missing.
    """
    # The command that is typed now says what it has today, whatever it had when it was tuned.
    today = tuple(
        knob.model_copy(update={"baseline": None}) if _is_told(knob, command) else knob for knob in own
    )
    workload = Workload(command=tuple(command), own=today)
    edits = list_file_values(workload, changes)
    words, copies = _copy_files(settle(workload, changes).command, edits, working_dir, folder, DIRECT)
    return list(words), copies


def _is_told(knob: OwnKnob, command: Sequence[str]) -> bool:
    """Whether the command says what an option is today; what has no option stands as it did when it was tuned."""
    return not knob.at.startswith("-") or find_option(command, knob.at) is not None


def _copy_files(
    command: tuple[str, ...],
    edits: Mapping[str, Mapping[str, Value]],
    working_dir: Path,
    folder: Path,
    files: Files,
) -> tuple[tuple[str, ...], dict[str, str]]:
    copies = {}
    for number, (path, values) in enumerate(edits.items()):
        # A folder for each: what an argument lies in is protected, and two files may have one name.
        name = f"changed{number}/{Path(path).name}"
        replaced = replace_path(command, path, str(folder / name))
        if replaced == command:
            raise Unlaunchable(
                f"The command does not name {path}, so that the script would not read the changed copy: name the file "
                "as the command does."
            )
        text, fault = files.change_keys(working_dir / path, values)
        if fault:
            raise Unlaunchable(
                f"{working_dir / path}: {fault}. Correct the job's own knobs, or the file on this node."
            )
        copies[name], command = text, replaced
    return command, copies
