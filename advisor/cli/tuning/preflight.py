"""What can be told of a job before anything is started for it on this machine."""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.local.agents import training_environment
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.training.launch_command import (
    ForeignCommand,
    PaddleCommand,
    UnlaunchableCommand,
    parse_command,
    trains_with_paddle,
)
from advisor.protocol.training.workload import WorkloadKind

_SCRIPTS = (".py", ".sh")
_READ = 2**20
"""Letters of a script that are looked at."""


def check_here(spec: JobSpec, environment: Mapping[str, str]) -> None:
    """Raise `CommandFailed` where launcher, script or number of nodes cannot work on this machine."""
    command = spec.workload.command
    path = training_environment(environment)["PATH"]
    if shutil.which(command[0], path=path) is None:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{command[0]} is not a program on this machine's PATH.",
            "Activate the environment that you train in, or give the launcher's full path. The command goes after "
            "`--`, as you type it in your shell: advisor tune -- torchrun --nproc-per-node 2 train.py",
        )
    if spec.workload.kind is WorkloadKind.COMMAND:
        return
    try:
        _refuse_paddle(spec)
        launch = parse_command(command)
    except PaddleCommand as error:
        if spec.workload.kind is WorkloadKind.PADDLE:
            return
        words = f"advisor tune --kind paddle -- {shlex.join(command)}"
        raise CommandFailed(Exit.INVALID_SPEC, str(error), f"Type: {words}") from error
    except ForeignCommand:
        # It starts the ranks in its own way: only its own words say which script.
        return
    except UnlaunchableCommand as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, str(error), "For example: advisor tune -- torchrun --nproc-per-node 2 train.py"
        ) from error
    script = launch.script_path
    if script is not None and not (Path(spec.workload.working_dir) / script).is_file():
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"There is no script {script} in {spec.workload.working_dir}.",
            "Run the command in the directory that you train in, or give the script's full path.",
        )
    if spec.nodes > 1 and not launch.is_torchrun:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"--nodes {spec.nodes}: {command[0]} starts one process and joins no other node.",
            f"Launch it with torchrun: advisor tune --nodes {spec.nodes} -- torchrun --nproc-per-node 2 "
            f"{' '.join(launch.script)}",
        )


def _refuse_paddle(spec: JobSpec) -> None:
    """Raise PaddleCommand where the script among the command's words trains with PaddlePaddle."""
    for word in spec.workload.command:
        path = Path(spec.workload.working_dir) / word
        if path.suffix in _SCRIPTS and path.is_file():
            with path.open(encoding="utf-8", errors="replace") as script:
                if trains_with_paddle(script.read(_READ)):
                    raise PaddleCommand(word)
            return


def warn_of_nodes(spec: JobSpec) -> str:
    """Return what several nodes on one machine mean; empty where it is one, or a testbed."""
    if spec.nodes == 1 or spec.testbed is not None:
        return ""
    return (
        f"Without a server all {spec.nodes} nodes are agents of this machine: they share its cores and devices, and "
        "nothing between them is a network. For a cluster set ADVISOR_URL; for shaped links: --testbed "
        f"nodes={spec.nodes},rate=1gbit"
    )
