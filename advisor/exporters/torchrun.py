"""`run.sh`: the user's own launch command with the strategy in force, not a line of the script changed."""

import shlex

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.environment import VARIABLES, choose_variables
from advisor.exporters.exported import Exported
from advisor.exporters.wrapper import export_wrapper
from advisor.protocol.advice import Advice, Provenance
from advisor.protocol.jobs import Job
from advisor.protocol.launch_command import LaunchCommand, UnlaunchableCommand, parse_command

_WRAPPER = '"$here/apply_strategy.py"'


def export_torchrun(advice: Advice, job: Job) -> Exported:
    """Return the launch script. What no variable can carry is done by apply_strategy.py, which lies beside it."""
    wrapper = export_wrapper(advice, job)
    variables = choose_variables(advice)
    provenance = dict(wrapper.provenance)
    by_variable = {variable: knob for knob, variable in VARIABLES.items()}
    for name in variables:
        provenance[by_variable[name]] = advice.provenance.get(by_variable[name], Provenance.CARRIED)
    unmapped = {knob: sentence for knob, sentence in wrapper.unmapped.items() if knob not in provenance}
    warnings = list(wrapper.warnings)
    launch = _find_script(job)
    if launch is None:
        warnings.append(
            "The training script was not found in the launch command, so only the environment is set here: put "
            "apply_strategy.py before the script yourself."
        )
        unmapped |= {
            knob: "The launch command has no place that we know to put apply_strategy.py into."
            for knob in wrapper.provenance
            if VARIABLES.get(knob) not in variables
        }
        provenance = {knob: known for knob, known in provenance.items() if knob not in unmapped}
    if job.spec.workload.environment:
        names = ", ".join(sorted(job.spec.workload.environment))
        warnings.append(
            f"The job set variables of its own, whose values are not repeated here; set them too: {names}."
        )
    title = "Launches the training under the strategy; arguments go to the script. Save apply_strategy.py beside it."
    head = head_lines(advice, job, title, provenance, warnings, unmapped)
    return Exported(
        format="torchrun",
        filename="run.sh",
        media_type="text/x-shellscript; charset=utf-8",
        content="#!/usr/bin/env bash\n" + comment(head) + _write_script(job, launch, variables),
        provenance=provenance,
        left=wrapper.left,
        unmapped=unmapped,
        warnings=tuple(warnings),
        needs=("wrapper",),
    )


def _find_script(job: Job) -> LaunchCommand | None:
    try:
        return parse_command(job.spec.workload.command)
    except UnlaunchableCommand:
        return None


def _write_script(job: Job, launch: LaunchCommand | None, variables: dict[str, str]) -> str:
    lines = ["set -euo pipefail", 'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"']
    if job.spec.workload.working_dir != ".":
        lines.append(f"cd -- {shlex.quote(job.spec.workload.working_dir)}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if launch is None:
        return "\n".join([*lines, f'exec {shlex.join(job.spec.workload.command)} "$@"']) + "\n"
    words = [shlex.join(launch.typed_launcher)]
    if job.spec.nodes > 1 and launch.is_torchrun and not launch.names_rendezvous:
        lines.append(
            ': "${NODE_RANK:?Set NODE_RANK (0, 1, ...) and MASTER_ADDR (the address of node 0) on every node.}" '
            '"${MASTER_ADDR:?Set MASTER_ADDR to the address of node 0 on every node.}"'
        )
        words.append(
            f'--nnodes {job.spec.nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" '
            '--master-port "${MASTER_PORT:-29500}"'
        )
    words += [_WRAPPER, shlex.join([*launch.script, *launch.arguments]), '"$@"']
    return "\n".join([*lines, f"exec {' '.join(words)}"]) + "\n"
