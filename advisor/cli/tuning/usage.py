"""How an advised strategy is put in place: one command, and how many of its changes that command carries."""

import shutil
import sys
from pathlib import Path

from advisor.exporters import ExportError, export
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.training.workload import WorkloadKind

_FORMATS = {
    WorkloadKind.PYTORCH: "torchrun",
    WorkloadKind.COMMAND: "command",
    WorkloadKind.PADDLE: "paddle",
}


def describe_use(advice: Advice, job: Job, directory: Path, is_written: bool) -> str:
    """Return the command that trains with the strategy from the files in `directory`, and what it cannot carry.

    Where they are not written yet the command that writes them comes first. Empty where nothing is to change.
    """
    if not advice.changes:
        return ""
    try:
        file = export(advice, job, _FORMATS[job.spec.workload.kind])
    except ExportError as error:
        return str(error)
    path = directory / file.filename
    starts = job.spec.workload.kind is not WorkloadKind.PADDLE
    # run.sh looks for `advisor` on the path, which a virtual environment that is not activated is not on.
    needs_path = job.spec.workload.kind is WorkloadKind.PYTORCH and shutil.which("advisor") is None
    variable = f"ADVISOR={Path(sys.executable).with_name('advisor')} " if needs_path else ""
    command = f"{variable}bash {path}" if starts else f"load {path} into fleet's DistributedStrategy"
    if not is_written:
        command = f"advisor export {job.id} -o {directory}{' && ' if starts else ', then '}{command}"
    left_out = [name for name in advice.changes if name not in file.provenance]
    carried = len(advice.changes) - len(left_out)
    unchanged = "; your script stays as it is" if starts else ""
    is_spread = job.spec.workload.kind is WorkloadKind.PYTORCH and job.spec.nodes > 1
    where = f"; on each of {job.spec.nodes} nodes, NODE_RANK and MASTER_ADDR set" if is_spread else ""
    sentence = f"{command}   ({carried} of {len(advice.changes)} changes{unchanged}{where})"
    return f"{sentence} Set yourself: {', '.join(left_out)}." if left_out else sentence
