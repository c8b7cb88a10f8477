"""Builds what is started for a command workload: any program, with the strategy in its command and its environment."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from advisor.protocol.base import Value
from advisor.protocol.knobs.reach import describe_in_environment, fill_command, list_given
from advisor.protocol.measured.messages import Assignment
from agent.backends.launch import Launch, SessionPlace, build_environment, choose_interface, find_working_dir
from agent.backends.rendezvous import split_rendezvous
from agent.backends.results import RESULTS_FILE
from agent.errors import Unlaunchable
from agent.files import Files

STRATEGY_FILE = "strategy.json"


def list_words(assignment: Assignment, rendezvous: str, place: SessionPlace) -> tuple[str, ...]:
    """Return the command's words with every value and place in them."""
    return fill_words(assignment, rendezvous, place, _list_values(assignment))


def build_launch(
    assignment: Assignment, rendezvous: str, place: SessionPlace, environment: Mapping[str, str]
) -> Launch:
    """Return the launch of this node's command; `environment` is the agent's own.

    Raises Unlaunchable when the command cannot work on this node.
    """
    return build_with_values(assignment, rendezvous, place, environment, _list_values(assignment))


def _list_values(assignment: Assignment) -> dict[str, Value]:
    return {**list_given(assignment.workload), **assignment.cold}


def fill_words(
    assignment: Assignment, rendezvous: str, place: SessionPlace, values: Mapping[str, Value]
) -> tuple[str, ...]:
    """Return the command's words with these values of the knobs."""
    return fill_command(assignment.workload.command, values, _list_places(assignment, rendezvous, place))


def _list_places(assignment: Assignment, rendezvous: str, place: SessionPlace) -> dict[str, str]:
    host, port = split_rendezvous(rendezvous)
    return {
        "strategy_file": str(place.agent_dir / STRATEGY_FILE),
        "results_file": str(place.session_dir / RESULTS_FILE),
        "node_rank": str(assignment.node_rank),
        "nodes": str(assignment.nnodes),
        "master_addr": host,
        "master_port": str(port),
    }


def build_with_values(
    assignment: Assignment,
    rendezvous: str,
    place: SessionPlace,
    environment: Mapping[str, str],
    values: Mapping[str, Value],
) -> Launch:
    """Return the launch with these values of the knobs that the program is given, and the strategy file."""
    working_dir = find_working_dir(assignment, place.files)
    places = _list_places(assignment, rendezvous, place)
    variables = build_environment(assignment, place, environment)
    variables |= describe_in_environment(values) | {
        "ADVISOR_STRATEGY_FILE": places["strategy_file"],
        "ADVISOR_RESULTS": places["results_file"],
        "ADVISOR_NODE_RANK": places["node_rank"],
        "ADVISOR_NODES": places["nodes"],
        "MASTER_ADDR": places["master_addr"],
        "MASTER_PORT": places["master_port"],
    }
    # Python keeps the lines of a program that writes into a pipe back until it has many of them.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    if assignment.nnodes > 1:
        choose_interface(rendezvous, variables)
    argv = fill_words(assignment, rendezvous, place, values)
    program = find_program(argv[0], working_dir, variables, place.files)
    script = find_script(argv[1:], working_dir, place.files)
    files = {STRATEGY_FILE: json.dumps(values)}
    return Launch((program, *argv[1:]), variables, working_dir, script, argv[1:], files=files)


def find_program(name: str, working_dir: Path, variables: Mapping[str, str], files: Files) -> str:
    """Return the path of a command's first word; raises Unlaunchable where it is no program on this node."""
    path = variables.get("PATH", os.defpath)
    found = files.find_program(str(working_dir / name) if "/" in name else name, path)
    if found is None:
        where = f"in {working_dir}" if "/" in name else f"on this node (PATH is {path})"
        raise Unlaunchable(
            f"{name} was not found {where}, or is not executable. Install it here, and give its full path in the job's "
            "command."
        )
    return found


def find_script(words: tuple[str, ...], working_dir: Path, files: Files) -> Path | None:
    """The first word that is a file: its folder is protected from what trials write, as a script's is."""
    return next((working_dir / word for word in words if files.is_file(working_dir / word)), None)
