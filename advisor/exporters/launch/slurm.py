"""`train.sbatch`: `run.sh` once on every node of a Slurm allocation."""

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.launch.names import plain_name
from advisor.exporters.launch.run_script import export_torchrun
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.nodes.cluster import DeviceKind

_MEET = """\
# sbatch runs a copy of this file: the strategy's files are found where you submitted it.
here="${ADVISOR_FILES:-$SLURM_SUBMIT_DIR}"
[ -f "$here/run.sh" ] || { echo "No run.sh in $here: submit there, or set ADVISOR_FILES to its folder." >&2; exit 1; }
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT="$((29500 + SLURM_JOB_ID % 1000))"
export MASTER_ADDR MASTER_PORT
"""


def export_slurm(advice: Advice, job: Job) -> Exported:
    """Return the batch script; nodes and devices are those of the job that was measured."""
    script = export_torchrun(advice, job)
    facts = job.facts
    options = [f"--job-name={plain_name(job)}", f"--nodes={job.spec.nodes}", "--ntasks-per-node=1"]
    if facts is not None and facts.device is DeviceKind.CUDA:
        options.append(f"--gpus-per-node={facts.local_world_size}")
    warnings = [
        *script.warnings,
        "Account, partition and time are your site's: sbatch --account=... --time=... train.sbatch",
    ]
    title = (
        "Trains under the strategy on Slurm: sbatch train.sbatch, with run.sh and what it needs beside it."
    )
    head = head_lines(advice, job, title, script.provenance, warnings, script.unmapped)
    directives = "".join(f"#SBATCH {option}\n" for option in options)
    start = """srun bash -c 'NODE_RANK="$SLURM_NODEID" exec bash "$0" "$@"' "$here/run.sh" "$@"\n"""
    return Exported(
        format="slurm",
        filename="train.sbatch",
        media_type="text/x-shellscript; charset=utf-8",
        content="#!/usr/bin/env bash\n" + directives + comment(head) + "set -euo pipefail\n" + _MEET + start,
        provenance=script.provenance,
        unmapped=script.unmapped,
        warnings=tuple(warnings),
        needs=("torchrun", "json", "runtime"),
    )
