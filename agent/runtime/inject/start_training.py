"""What `python fleet_advisor_runtime.pyz` does: it becomes a training's own command, with a strategy for its ranks.

`[--strategy FILE] COMMAND…` before a launch command, on every node that has one; or `[--strategy FILE] train.py …` and
`[--strategy FILE] -m module …` where a launcher is told its script. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, NoReturn, Tuple

from ..link.rank_output import say
from .session import parse_script, run_script
from .variables import INVALID, LEFT_OUT, UNCHANGED, is_trial, put_under

_FLAG = "--strategy"
_USAGE = "[--strategy strategy.json] [--] COMMAND…  (a launch command, train.py …, or -m module …)"
_READ = ("changes", "holds_for", "baseline", "at_launch", "launch_variables", "launch_unset")
"""Of the strategy file."""


def main() -> None:
    archive = os.path.abspath(sys.argv[0])
    path, command = parse(sys.argv[1:], os.path.join(os.path.dirname(archive), "strategy.json"))
    if not command:
        _fail(f"usage: {os.path.basename(archive)} {_USAGE}", 2)
    is_script = command[0] == "-m" or command[0].endswith(".py")
    variables: Dict[str, str] = dict(os.environ)
    is_first = variables.get("RANK", "0") == "0"
    if is_trial(variables):
        told = LEFT_OUT
    else:
        file = read(path)
        name = f"job {file.get('job_name') or file.get('job_id')} of {str(file.get('date'))[:10]}"
        told = f"{name}: {file.get('headline')}" if file["changes"] else f"{name} {UNCHANGED}"
        if file["changes"]:
            runtime = os.path.join(archive, __name__.partition(".")[0])
            for unset in file["launch_unset"]:
                variables.pop(unset, None)
            variables = put_under(
                runtime, variables, describe(file), file["at_launch"], file["launch_variables"]
            )
    if is_first:
        say(told)
    if is_script and is_trial(variables):  # an agent may have put the runtime into this very process
        run_script(parse_script(command))
        return
    if is_script:
        command = [sys.executable, *list_flags(), *command]
    else:
        # The user's own torchrun comes first; this Python's serves where its environment is not activated.
        folders = variables.get("PATH", os.defpath), os.path.dirname(sys.executable)
        variables["PATH"] = os.pathsep.join(folders)
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        remedy = "Activate the environment that has it, or start this file by that environment's Python."
        _fail(f"{command[0]} cannot be started: {error.strerror}. {remedy}", INVALID)


def parse(words: List[str], beside: str) -> Tuple[str, List[str]]:
    """The strategy file, `beside` the archive where none is named, and the command."""
    path = beside
    if words[:1] == [_FLAG] and len(words) > 1:
        path, words = words[1], words[2:]
    elif words and words[0].startswith(f"{_FLAG}="):
        path, words = words[0].partition("=")[2], words[1:]
    return path, words[1:] if words[:1] == ["--"] else words


def read(path: str) -> Dict[str, Any]:
    """The strategy file; ends the process, with a sentence, where it can be put in force in no PyTorch rank."""
    try:
        with open(path, encoding="utf-8") as opened:
            file = json.load(opened)
    except (OSError, ValueError) as error:
        _fail(f"{path} cannot be read as a strategy file: {error}", INVALID)
    if not isinstance(file, dict) or not all(name in file for name in _READ):
        _fail(f"{path} is no strategy file of this version of Fleet Advisor: export it again.", INVALID)
    if file.get("kind") != "pytorch":
        _fail(
            f"{path} is for a {file.get('kind')} workload, whose program takes its settings itself.", INVALID
        )
    return file


def describe(file: Dict[str, Any]) -> Dict[str, Any]:
    """What the ranks are to know of it."""
    baseline = {name: value for name, value in file["baseline"].items() if name in file["changes"]}
    own = [knob["name"] for knob in file.get("own") or ()]
    return {
        "changes": file["changes"],
        "holds_for": file["holds_for"] or {},
        "baseline": baseline,
        "own": own,
    }


def list_flags() -> List[str]:
    """The interpreter's own options, as this process was started with them."""
    typed: List[str] = getattr(sys, "orig_argv", [])  # from Python 3.10 on
    return typed[1 : len(typed) - len(sys.argv)]


def _fail(sentence: str, code: int) -> NoReturn:
    say(sentence)
    raise SystemExit(code)
