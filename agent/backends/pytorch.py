"""Builds what is started for a PyTorch workload: the user's launch command, with the runtime in front of its script."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from advisor.protocol.training.launch_command import (
    LaunchCommand,
    UnlaunchableCommand,
    choose_injection,
)
from advisor.protocol.training.workload import Injection
from agent.backends.injection import inject_runtime, launch_as_typed
from agent.backends.launch import Launch, Wanted, build_environment
from agent.devices.hardware import find_version
from agent.errors import Unlaunchable
from agent.files import Files

START_RANKS = Path(__file__).parents[1] / "runtime" / "inject" / "start_ranks.py"


def build_launch(wanted: Wanted, environment: Mapping[str, str]) -> Launch:
    """Return the launch of this node's ranks; `environment` is the agent's own.

    Raises Unlaunchable when the command, its script or its launcher cannot work on this node.
    """
    assignment, files, launch = wanted.assignment, wanted.place.files, wanted.command.launch
    working_dir = wanted.find_working_dir()
    variables = build_environment(wanted, environment)
    try:
        injection = choose_injection(assignment.workload.injection, wanted.command)
    except UnlaunchableCommand as error:
        raise Unlaunchable(str(error)) from error
    variables |= inject_runtime(injection, wanted.place, variables)
    if launch is None:
        return launch_as_typed(wanted, working_dir, variables)
    if "/" in launch.launcher:
        launch = replace(launch, launcher=str(working_dir / launch.launcher))
    script = _find_script(launch, working_dir, files)
    warnings = []
    if launch.is_torchrun:
        interpreter = _spare_torchrun(_find_torchrun(launch, variables, files))
        if launch.replaced:
            warnings.append(
                f"{', '.join(launch.replaced)}: replaced, because the job's {assignment.nnodes} agent(s) decide "
                "how the nodes meet."
            )
        options = (*_join_gang(wanted.places), *launch.launcher_options)
    else:
        if assignment.nnodes > 1:
            raise Unlaunchable(
                f"{launch.launcher} starts a single process, but the job wants {assignment.nnodes} nodes. Give the "
                "command as torchrun --nproc-per-node N script.py …"
            )
        interpreter = (_find_python(launch.launcher, variables, files), *launch.python_options)
        variables.setdefault("PYTHONUNBUFFERED", "1")
        options = ()
    runtime = (str(wanted.place.runtime_script),) if injection is Injection.LAUNCHER else ()
    argv = (*interpreter, *options, *runtime, *launch.script, *launch.arguments)
    return Launch(argv, variables, working_dir, script, launch.arguments, tuple(warnings))


def _join_gang(places: Mapping[str, str]) -> tuple[str, ...]:
    # No restarts: a rank that died is a result, and a restarted gang would not be in the session's rendezvous.
    return (
        f"--nnodes={places['nodes']}", f"--node-rank={places['node_rank']}", "--rdzv-backend=static",
        f"--master-addr={places['master_addr']}", f"--master-port={places['master_port']}", "--max-restarts=0",
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
