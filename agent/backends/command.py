"""Builds what is started for a command workload: any program, with the strategy in its command and its environment."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from advisor.protocol.base import Value
from advisor.protocol.knobs.reach import describe_in_environment, fill_command, list_given
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.workload import WorkloadKind
from agent.backends.launch import Launch, SessionPlace, Wanted, build_environment, list_places
from agent.backends.results import RESULTS_FILE
from agent.errors import Unlaunchable
from agent.files import Files

STRATEGY_FILE = "strategy.json"


def read_filled(assignment: Assignment, rendezvous: str, place: SessionPlace) -> Wanted:
    """Return what is started of a command whose words have every value and place in them."""
    places = list_places(assignment, rendezvous) | {
        "strategy_file": str(place.agent_dir / STRATEGY_FILE),
        "results_file": str(place.session_dir / RESULTS_FILE),
    }
    words = fill_command(assignment.workload.command, _list_values(assignment), places)
    return Wanted(assignment, place, places, Command.read(words))


def build_launch(wanted: Wanted, environment: Mapping[str, str]) -> Launch:
    """Return the launch of this node's command, and the strategy file; `environment` is the agent's own.

    Raises Unlaunchable when the command cannot work on this node.
    """
    working_dir, places = wanted.find_working_dir(), wanted.places
    values = _list_values(wanted.assignment)
    variables = build_environment(wanted, environment)
    variables |= describe_in_environment(values) | {
        "ADVISOR_STRATEGY_FILE": places["strategy_file"],
        "ADVISOR_RESULTS": places["results_file"],
        "ADVISOR_NODE_RANK": places["node_rank"],
        "ADVISOR_NODES": places["nodes"],
        "MASTER_ADDR": places["master_addr"],
        "MASTER_PORT": places["master_port"],
    }
    launch = launch_words(wanted, working_dir, variables)
    return replace(launch, files={STRATEGY_FILE: json.dumps(values)})


def _list_values(assignment: Assignment) -> dict[str, Value]:
    """What the program is told: a Paddle script's own values are the baseline, so it is given nothing but changes."""
    is_paddle = assignment.workload.kind is WorkloadKind.PADDLE
    return {**({} if is_paddle else list_given(assignment.workload)), **assignment.cold}


def launch_words(wanted: Wanted, working_dir: Path, variables: dict[str, str]) -> Launch:
    """Return the launch of a command that is started as it stands.

    The first of its words that is a file counts as its script: its folder is protected from what trials write.
    """
    # Python keeps the lines of a program that writes into a pipe back until it has many of them.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    (name, *rest), files = wanted.command.words, wanted.place.files
    program = find_program(name, working_dir, variables, files)
    script = next((working_dir / word for word in rest if files.is_file(working_dir / word)), None)
    return Launch((program, *rest), variables, working_dir, script, tuple(rest))


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
