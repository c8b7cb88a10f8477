"""How the runtime gets into ranks that a launcher of the user's own starts, and how that launcher joins the gang.

The command stays as it was typed. What torchrun would be told by options it reads from variables of its own (PET_…),
so a torchrun inside `bash run.sh` finds the other nodes, and a free port, without a change.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.launch_command import UnlaunchableCommand, parse_command
from advisor.protocol.training.workload import Injection
from agent.backends.command import find_program, find_script
from agent.backends.launch import Launch, SessionPlace, choose_interface, find_working_dir
from agent.backends.rendezvous import split_rendezvous
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


def list_words(assignment: Assignment, rendezvous: str, _: SessionPlace) -> tuple[str, ...]:
    """Return the command's words: what our launcher reads stays as it was typed."""
    try:
        parse_command(assignment.workload.command)
    except UnlaunchableCommand:
        places = _list_places(assignment, rendezvous)
        return tuple(_fill(word, places) for word in assignment.workload.command)
    return assignment.workload.command


def launch_as_typed(
    assignment: Assignment, rendezvous: str, place: SessionPlace, variables: dict[str, str]
) -> Launch:
    """Return the launch of a command that starts its ranks itself.

    The command and the workload's environment may hold ${master_addr}, ${master_port}, ${nodes} and ${node_rank}.
    Raises Unlaunchable when its first word is no program on this node.
    """
    working_dir = find_working_dir(assignment, place.files)
    host, port = split_rendezvous(rendezvous)
    places = _list_places(assignment, rendezvous)
    variables |= {name: _fill(variables[name], places) for name in assignment.workload.environment}
    variables |= {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "NNODES": str(assignment.nnodes),
        "NODE_RANK": str(assignment.node_rank),
        "PET_NNODES": str(assignment.nnodes),
        "PET_NODE_RANK": str(assignment.node_rank),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
        "PET_MAX_RESTARTS": "0",
        "ADVISOR_NODES": str(assignment.nnodes),
        "ADVISOR_STAY_S": str(_STAY_S),
    }
    variables.setdefault("PYTHONUNBUFFERED", "1")
    if assignment.nnodes > 1:
        choose_interface(rendezvous, variables)
    words = list_words(assignment, rendezvous, place)
    program = find_program(words[0], working_dir, variables, place.files)
    warnings = [
        f"{name} seems to start Python without the variables it was given ({found}), so the runtime may not get into "
        "the ranks: write PYTHONPATH=…:$PYTHONPATH, and drop env -i and python's -E, -I and -S."
        for name, found in find_lost_paths(words, working_dir, place.files)
    ]
    script = find_script(words[1:], working_dir, place.files)
    return Launch((program, *words[1:]), variables, working_dir, script, words[1:], tuple(warnings))


def _list_places(assignment: Assignment, rendezvous: str) -> dict[str, str]:
    host, port = split_rendezvous(rendezvous)
    return {
        "master_addr": host,
        "master_port": str(port),
        "nodes": str(assignment.nnodes),
        "node_rank": str(assignment.node_rank),
    }


def _fill(text: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(f"${{{name}}}", value)
    return text
