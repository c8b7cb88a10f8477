"""What can be told of a job before anything is started for it on this machine."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.unread_knobs import refuse_unread
from advisor.local.agents import training_environment
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.kinds import Allow
from advisor.protocol.training.launch_command import (
    Command,
    ForeignCommand,
    LaunchCommand,
    PaddleCommand,
    UnlaunchableCommand,
    parse_command,
    refuse_paddle,
    trains_with_paddle,
)
from advisor.protocol.training.workload import WorkloadKind

_SCRIPTS = (".py", ".sh")
_READ = 2**20
"""Letters of a script that are looked at."""
_STARTS_OTHERS = re.compile(
    r"subprocess|os\.(?:system|exec|spawn|posix_spawn)|popen|pexpect|torchrun|ray\b", re.IGNORECASE
)
"""Words of a script that may start its training with another Python."""
_NO_TORCH, _PATIENCE_S = 7, 20.0
_FIND_TORCH = (
    f"import sys, importlib.util; sys.exit({_NO_TORCH} if importlib.util.find_spec('torch') is None else 0)"
)


def check_here(spec: JobSpec, environment: Mapping[str, str]) -> None:
    """Raise `CommandFailed` where launcher, script or number of nodes cannot work on this machine."""
    command = spec.workload.command
    variables = training_environment(environment)
    path = spec.workload.environment.get("PATH", variables["PATH"])
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
        typed = f"advisor tune --kind paddle -- {shlex.join(command)}"
        raise CommandFailed(Exit.INVALID_SPEC, str(error), typed) from error
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
    if script is not None:
        refuse_unread(spec, Path(spec.workload.working_dir) / script)
    if spec.nodes > 1 and not launch.is_torchrun:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"--nodes {spec.nodes}: {command[0]} starts one process and joins no other node.",
            f"Launch it with torchrun: advisor tune --nodes {spec.nodes} -- torchrun --nproc-per-node 2 "
            f"{' '.join(launch.script)}",
        )
    _refuse_without_torch(spec, launch, path)


def _refuse_without_torch(spec: JobSpec, launch: LaunchCommand, path: str) -> None:
    """Raise `CommandFailed` where the Python that runs the script has no torch."""
    python = shutil.which(launch.launcher, path=path)
    script = Path(spec.workload.working_dir) / (launch.script_path or "")
    if launch.is_torchrun and not launch.runs_module:
        python = _read_interpreter(python)
    elif not script.is_file() or _STARTS_OTHERS.search(_read(script)):
        return
    if python is None or "PYTHONPATH" in spec.workload.environment:
        return
    found = subprocess.run([python, "-c", _FIND_TORCH], capture_output=True, timeout=_PATIENCE_S, check=False)
    if found.returncode == _NO_TORCH:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{python} has no torch, so it cannot run this training.",
            "Activate the environment that you train in, or give the full path of its torchrun or python.",
        )


def _read_interpreter(script: str | None) -> str | None:
    """Return the Python that an installed script names in its first line; None where it names none."""
    with Path(script or "/dev/null").open(encoding="utf-8", errors="replace") as file:
        first = file.readline(4096)
    python = first[2:].strip() if first.startswith("#!") else ""
    return python if Path(python).name.startswith("python") and shutil.which(python) else None


def warn_of_stray_options(spec: JobSpec, flags: Collection[str]) -> str:
    """Return which words behind the script look like options of `advisor tune`, which does not see them there.

    Empty where there are none, and where the script itself knows them. `flags`: as they are typed, `--minutes`.
    """
    launch = Command.read(spec.workload.command).launch
    if launch is None:
        return ""
    script = Path(spec.workload.working_dir) / (launch.script_path or "")
    known = _read(script) if script.is_file() else ""
    strays = [
        word
        for word in launch.arguments
        if word.partition("=")[0] in flags and not re.search(rf"\b{_as_name(word)}\b", known)
    ]
    if not strays:
        return ""
    return (
        f"{', '.join(strays)} stands behind the script, so {' '.join(launch.script)} gets it and advisor does not. If "
        "it is meant for advisor, put it in front of the `--`."
    )


def warn_of_undeclared(spec: JobSpec) -> str:
    """Return which knobs of the user's own can be measured and not advised, since nothing says what they change."""
    if spec.allow is Allow.CONVERGENCE and spec.from_checkpoint:
        return ""
    names = [knob.name for knob in spec.workload.own if knob.effect is None]
    if not names:
        return ""
    return (
        f"Nothing says that the mathematics stays with another {' or '.join(names)}: that counts as a change to how "
        "the model learns, which is measured and not advised. Write NAME=V,V:exact (a variant: 'NAME:exact: …') if it "
        "stays, or allow it: --allow convergence --from-checkpoint."
    )


def _as_name(word: str) -> str:
    """`--block-seconds=3` as a script's text spells it, with whichever dashes."""
    return re.escape(word.partition("=")[0].lstrip("-")).replace(r"\-", "[-_]")


def _read(script: Path) -> str:
    with script.open(encoding="utf-8", errors="replace") as text:
        return text.read(_READ)


def _refuse_paddle(spec: JobSpec) -> None:
    """Raise PaddleCommand where the command's launcher or its script trains with PaddlePaddle."""
    refuse_paddle(spec.workload.command)
    for word in spec.workload.command:
        path = Path(spec.workload.working_dir) / word
        if path.suffix in _SCRIPTS and path.is_file():
            if trains_with_paddle(_read(path)):
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
