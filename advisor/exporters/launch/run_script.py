"""`run.sh`: the user's own launch command behind the runtime's archive, not a line of the script changed."""

import shlex

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.selection import idle_because, typed_values
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.training.launch_command import LaunchCommand, UnlaunchableCommand, parse_command
from advisor.protocol.training.settling import list_file_values, settle
from advisor.protocol.training.workload import Workload

RUNTIME = "fleet_advisor_runtime.pyz"
"""The archive with the runtime."""
_TITLE = (
    f"Trains for real under the strategy in strategy.json by the runtime in {RUNTIME}, both beside it; arguments go to "
    "the script. Every change comes into force in the ranks themselves, which say so with the proof."
)
_FIND_RUNTIME = (
    f'runtime="$here/{RUNTIME}"',
    f'[[ -f $runtime ]] || {{ echo "No {RUNTIME} beside $0: advisor export JOB --format runtime writes it." >&2; '
    "exit 127; }",
)
_FIND_PYTHON = (
    'python="$(command -v "${PYTHON:-python3}")" || { echo "${PYTHON:-python3} was not found on this node: set PYTHON '
    "to the path of your training's.\" >&2; exit 127; }",
    # It is looked for where the command was typed, and used where the training is.
    '[[ $python == /* ]] || python="$PWD/$python"',
)
_ALL_HERE = """\
# Tuned with all {nodes} nodes on one machine: without a NODE_RANK all of them start here.
if [[ -z ${{NODE_RANK:-}} ]]; then
    export PYTHON="$python" MASTER_ADDR=127.0.0.1 MASTER_PORT="${{MASTER_PORT:-$((20000 + RANDOM % 10000))}}"
    ranks=()
    for rank in {{0..{last}}}; do
        NODE_RANK=$rank bash "$here/${{BASH_SOURCE[0]##*/}}" "$@" &
        ranks+=($!)
    done
    trap 'kill -TERM "${{ranks[@]}}" 2>/dev/null || true' INT TERM
    code=0
    for rank in "${{ranks[@]}}"; do
        until wait "$rank"; do
            failed=$?
            kill -0 "$rank" 2>/dev/null || {{ code=$failed; break; }}
        done
    done
    exit "$code"
fi"""


def carry_everything(advice: Advice) -> tuple[dict[str, Provenance], dict[str, str]]:
    """Return how much is known of every change that the runtime puts in force, and why the others are idle."""
    values = typed_values(advice)
    idle = {knob: because for knob in advice.changes if (because := idle_because(knob, values)) is not None}
    provenance = {
        knob: advice.provenance.get(knob, Provenance.CARRIED) for knob in advice.changes if knob not in idle
    }
    return provenance, idle


def export_torchrun(advice: Advice, job: Job) -> Exported:
    """Return the launch script. It carries every change, by the same means as the trials."""
    provenance, idle = carry_everything(advice)
    warnings = []
    if job.spec.workload.environment:
        names = ", ".join(sorted(job.spec.workload.environment))
        warnings.append(
            f"The job set variables of its own, whose values are not repeated here; set them too: {names}."
        )
    for path, keys in list_file_values(job.spec.workload, advice.changes).items():
        told = ", ".join(f"{key} = {value}" for key, value in keys.items())
        warnings.append(
            f"Write {told} into {path} yourself: the file is yours, and trials read a changed copy."
        )
    head = head_lines(advice, job, _TITLE, provenance, warnings, idle)
    return Exported(
        format="torchrun",
        filename="run.sh",
        media_type="text/x-shellscript; charset=utf-8",
        content="#!/usr/bin/env bash\n"
        + comment(head)
        + _write_script(job, settle(job.spec.workload, advice.changes)),
        provenance=provenance,
        unmapped=idle,
        warnings=tuple(warnings),
        needs=("json", "runtime"),
    )


def _write_script(job: Job, workload: Workload) -> str:
    lines = [
        "set -euo pipefail",
        'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        *_FIND_RUNTIME,
        *_FIND_PYTHON,
    ]
    if job.spec.workload.working_dir != ".":
        lines.append(f"cd -- {shlex.quote(job.spec.workload.working_dir)}")
    launch = _parse(workload)
    words = [shlex.join(workload.command)]
    if launch is not None:
        words = [shlex.join(launch.typed_launcher)]
        if job.spec.nodes > 1 and launch.is_torchrun and not launch.names_rendezvous:
            if job.cluster.shares_one_machine:
                lines.append(_ALL_HERE.format(nodes=job.spec.nodes, last=job.spec.nodes - 1))
            lines.append(
                ': "${NODE_RANK:?Set NODE_RANK (0, 1, ...) and MASTER_ADDR (the address of node 0) on every node.}" '
                '"${MASTER_ADDR:?Set MASTER_ADDR to the address of node 0 on every node.}"'
            )
            words.append(
                f'--nnodes {job.spec.nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" '
                '--master-port "${MASTER_PORT:-29500}"'
            )
        words.append(shlex.join([*launch.script, *launch.arguments]))
    run = 'exec "$python" "$runtime" --strategy "$here/strategy.json" --'
    return "\n".join([*lines, f'{run} {" ".join(words)} "$@"']) + "\n"


def _parse(workload: Workload) -> LaunchCommand | None:
    try:
        return parse_command(workload.command)
    except UnlaunchableCommand:
        return None
