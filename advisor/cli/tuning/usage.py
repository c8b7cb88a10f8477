"""How an advised strategy is put in place: a command to paste, and the lines to write instead."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from advisor.answers.answer import Use
from advisor.exporters import ExportError
from advisor.exporters.formats import choose_start
from advisor.exporters.own_lines import list_own_lines
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.training.workload import WorkloadKind


def describe_use(advice: Advice, job: Job, directory: Path, is_written: bool) -> Use:
    """Return how to train with the strategy from the files in `directory`, and what these cannot carry.

    Where they are not written yet the command that writes them comes first. Where nothing is to change there is no
    command.
    """
    program = find_program()
    if not advice.changes:
        return Use(program=program, written=str(directory) if is_written else "")
    try:
        file = choose_start(job).export(advice, job)
    except ExportError as error:
        return Use(note=str(error), program=program)
    path = shlex.quote(str(directory / file.filename))
    starts = job.spec.workload.kind is not WorkloadKind.PADDLE
    command = f"{_name_python(job)}bash {path}" if starts else f"load {path} into fleet's DistributedStrategy"
    if not is_written:
        write = f"{program} export {job.id} -o {shlex.quote(str(directory))}"
        command = f"{write}{' && ' if starts else ', then '}{command}"
    left_out = [name for name in advice.changes if name not in file.provenance]
    carried = len(advice.changes) - len(left_out)
    note = f"{carried} of {len(advice.changes)} changes{'; your script stays as it is' if starts else ''}"
    if job.spec.workload.kind is WorkloadKind.PYTORCH and job.spec.nodes > 1:
        note += (
            f"; starts all {job.spec.nodes} nodes here"
            if job.cluster.shares_one_machine
            else (f"; on each of {job.spec.nodes} nodes, with NODE_RANK and MASTER_ADDR set")
        )
    if job.spec.workload.environment:
        note += f"; with the job's {', '.join(sorted(job.spec.workload.environment))} set"
    if left_out:
        note += f"; set yourself: {', '.join(left_out)}"
    return Use(command=command, note=note, lines=list_own_lines(advice, job), program=program)


def find_program() -> str:
    """Return how this very command is typed in this folder: by its name, its path, or as a module of this Python."""
    if shutil.which("advisor") is not None:
        return "advisor"
    beside = Path(sys.executable).with_name("advisor")
    return _type_path(beside) if beside.exists() else f"{_type_path(Path(sys.executable))} -m advisor"


def _name_python(job: Job) -> str:
    """Name this Python to `run.sh` where the launcher is found beside it alone: its environment is not activated."""
    launcher, own = job.spec.workload.command[0], Path(sys.executable)
    if job.spec.workload.kind is not WorkloadKind.PYTORCH or shutil.which(launcher) is not None:
        return ""
    return f"PYTHON={_type_path(own)} " if shutil.which(launcher, path=str(own.parent)) else ""


def _type_path(program: Path) -> str:
    here = Path.cwd()
    return shlex.quote(os.path.relpath(program, here) if program.is_relative_to(here) else str(program))
