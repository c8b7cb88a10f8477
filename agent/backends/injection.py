"""How the runtime gets into ranks that a launcher of the user's own starts, and how that launcher joins the gang.

The command stays as it was typed. What torchrun would be told by options it reads from variables of its own (PET_…),
so a torchrun inside `bash run.sh` finds the other nodes, and a free port, without a change.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.workload import Injection
from agent.backends.command import launch_words
from agent.backends.launch import Launch, SessionPlace, Wanted, list_places
from agent.files import DIRECT, Files
from agent.runtime.inject.variables import reach_ranks

_LARGEST_SCRIPT = 2**20
_LOSES_PATH = re.compile(
    r"\bPYTHONPATH=(?![^\s;]*\$\{?PYTHONPATH)|\benv\s+(-i|--ignore-environment)\b|\bpython\S*\s+-\w*[EIS]"
)


def find_lost_paths(words: Sequence[str], working_dir: Path, files: Files = DIRECT) -> list[tuple[str, str]]:
    """Return where in a command and its shell scripts Python would lose PYTHONPATH, each with the text that says so."""
    texts = {" ".join(words[:2]): " ".join(words)}
    for word in words:
        path = working_dir / word
        if path.suffix in {".sh", ".bash", ""}:
            texts[word] = files.read_beginning(path, _LARGEST_SCRIPT)
    return [(name, found[0]) for name, text in texts.items() if (found := _LOSES_PATH.search(text))]


_STAY_S = 60
"""Longest time that a finished rank waits to be ended, so that the user's script does not go on after it."""


def inject_runtime(injection: Injection, place: SessionPlace, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let the ranks, or the script itself, find the runtime."""
    everywhere = injection is Injection.ENVIRONMENT
    return reach_ranks(str(place.runtime_script.parent), variables, everywhere=everywhere)


def read_typed(assignment: Assignment, rendezvous: str, place: SessionPlace) -> Wanted:
    """Return what is started of a command: as typed where our launcher reads it, else with the places in its words."""
    command, places = Command.read(assignment.workload.command), list_places(assignment, rendezvous)
    if command.launch is None:
        command = replace(command, words=tuple(_fill(word, places) for word in command.words))
    return Wanted(assignment, place, places, command)


def launch_as_typed(wanted: Wanted, working_dir: Path, variables: dict[str, str]) -> Launch:
    """Return the launch of a command that starts its ranks itself.

    The command and the workload's environment may hold ${master_addr}, ${master_port}, ${nodes} and ${node_rank}.
    Raises Unlaunchable when its first word is no program on this node.
    """
    places = wanted.places
    variables |= {name: _fill(variables[name], places) for name in wanted.assignment.workload.environment}
    told = {
        "MASTER_ADDR": places["master_addr"],
        "MASTER_PORT": places["master_port"],
        "NNODES": places["nodes"],
        "NODE_RANK": places["node_rank"],
    }
    variables |= told | {f"PET_{name}": text for name, text in told.items()}
    variables |= {
        "PET_MAX_RESTARTS": "0",
        "ADVISOR_NODES": places["nodes"],
        "ADVISOR_STAY_S": str(_STAY_S),
    }
    launch = launch_words(wanted, working_dir, variables)
    warnings = [
        f"{name} seems to start Python without the variables it was given ({found}), so the runtime may not get into "
        "the ranks: write PYTHONPATH=…:$PYTHONPATH, and drop env -i and python's -E, -I and -S."
        for name, found in find_lost_paths(wanted.command.words, working_dir, wanted.place.files)
    ]
    return replace(launch, warnings=tuple(warnings))


def _fill(text: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(f"${{{name}}}", value)
    return text
