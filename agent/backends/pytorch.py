"""Builds what is started for a PyTorch workload: the user's launch command, with the runtime in front of its script."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.launch_command import (
    ForeignCommand,
    LaunchCommand,
    UnlaunchableCommand,
    choose_injection,
    parse_command,
)
from advisor.protocol.training.workload import Injection
from agent.backends.injection import inject_runtime, launch_as_typed
from agent.backends.launch import Launch, SessionPlace, build_environment, choose_interface, find_working_dir
from agent.backends.rendezvous import split_rendezvous
from agent.devices.hardware import find_version
from agent.errors import Unlaunchable
from agent.files import Files

START_RANKS = Path(__file__).parents[1] / "runtime" / "inject" / "start_ranks.py"


def build_launch(
    assignment: Assignment, rendezvous: str, place: SessionPlace, environment: Mapping[str, str]
) -> Launch:
    """Return the launch of this node's ranks; `environment` is the agent's own.

    Raises Unlaunchable when the command, its script or its launcher cannot work on this node.
    """
    workload = assignment.workload
    files = place.files
    working_dir = find_working_dir(assignment, files)
    variables = build_environment(assignment, place, environment)
    try:
        injection = choose_injection(workload.injection, workload.command)
    except UnlaunchableCommand as error:
        raise Unlaunchable(str(error)) from error
    variables |= inject_runtime(injection, place, variables)
    try:
        command = parse_command(workload.command)
    except ForeignCommand:
        return launch_as_typed(assignment, rendezvous, place, variables)
    if "/" in command.launcher:
        command = replace(command, launcher=str(working_dir / command.launcher))
    script = _find_script(command, working_dir, files)
    warnings = []
    if command.is_torchrun:
        interpreter = _spare_torchrun(_find_torchrun(command, variables, files))
        if command.replaced:
            warnings.append(
                f"{', '.join(command.replaced)}: replaced, because the job's {assignment.nnodes} agent(s) decide "
                "how the nodes meet."
            )
        if assignment.nnodes > 1:
            choose_interface(rendezvous, variables)
        options = (*_join_gang(assignment, rendezvous), *command.launcher_options)
    else:
        if assignment.nnodes > 1:
            raise Unlaunchable(
                f"{command.launcher} starts a single process, but the job wants {assignment.nnodes} nodes. Give the "
                "command as torchrun --nproc-per-node N script.py …"
            )
        interpreter = (_find_python(command.launcher, variables, files), *command.python_options)
        variables.setdefault("PYTHONUNBUFFERED", "1")
        options = ()
    runtime = (str(place.runtime_script),) if injection is Injection.LAUNCHER else ()
    argv = (*interpreter, *options, *runtime, *command.script, *command.arguments)
    return Launch(argv, variables, working_dir, script, command.arguments, tuple(warnings))


def _join_gang(assignment: Assignment, rendezvous: str) -> tuple[str, ...]:
    host, port = split_rendezvous(rendezvous)
    # No restarts: a rank that died is a result, and a restarted gang would not be in the session's rendezvous.
    return (
        f"--nnodes={assignment.nnodes}", f"--node-rank={assignment.node_rank}", "--rdzv-backend=static",
        f"--master-addr={host}", f"--master-port={port}", "--max-restarts=0",
    )  # fmt: skip


def _find_script(command: LaunchCommand, working_dir: Path, files: Files) -> Path | None:
    if command.script_path is None:
        return None
    script = working_dir / command.script_path
    if not files.exists(script):
        raise Unlaunchable(
            f"The script {command.script_path} does not exist in {working_dir} on this node. Check the path, and that "
            "every node has the file."
        )
    return script


def _find_torchrun(command: LaunchCommand, variables: Mapping[str, str], files: Files) -> tuple[str, ...]:
    """Return the words that start torchrun, by the python it belongs to where that can be told: venvs stay whole."""
    if command.runs_module:
        python = _find_python(command.launcher, variables, files)
        return (python, *command.python_options, "-m", "torch.distributed.run")
    path = variables.get("PATH", os.defpath)
    found = files.find_program(command.launcher, path)
    if found is None and command.launcher == "torchrun" and find_version("torch"):
        return (sys.executable, "-m", "torch.distributed.run")
    if found is None:
        raise Unlaunchable(
            f"{command.launcher} was not found on this node (PATH is {path}). Install torch here, and give "
            "torchrun's full path in the job's command (/path/to/venv/bin/torchrun)."
        )
    python_of = _read_interpreter(Path(found), files)
    return (python_of, "-m", "torch.distributed.run") if python_of else (found,)


def _spare_torchrun(interpreter: tuple[str, ...]) -> tuple[str, ...]:
    """Have ranks started without torchrun's own loading of torch, by a script that knows when that will not do."""
    if interpreter[-2:] != ("-m", "torch.distributed.run"):
        return interpreter
    return (*interpreter[:-2], str(START_RANKS))


def _read_interpreter(script: Path, files: Files) -> str | None:
    """Return the python that an installed script names, None when it is no such script."""
    first = files.read_beginning(script, 4096).splitlines()[:2]
    if not first or not first[0].startswith("#!"):
        return None
    # pip writes a second line when the path is too long or holds spaces: '''exec' /path/to/python "$0" "$@"
    wrapped = re.match(r"'''exec' (?:\"([^\"]+)\"|(\S+)) ", first[1]) if len(first) > 1 else None
    python = (wrapped[1] or wrapped[2]) if wrapped else first[0][2:].strip()
    is_python = "/" in python and Path(python).name.startswith("python")
    return files.find_program(python, os.defpath) if is_python else None


def _find_python(launcher: str, variables: Mapping[str, str], files: Files) -> str:
    found = files.find_program(launcher, variables.get("PATH", os.defpath))
    if found is not None:
        return found
    if "/" not in launcher:
        return sys.executable
    raise Unlaunchable(f"{launcher} does not exist on this node, or is not executable: check the path.")
