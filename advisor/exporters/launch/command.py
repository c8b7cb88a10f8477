"""`run.sh` of a command workload: the very command with the strategy's values in it and in its environment."""

import json
import shlex

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.reach import describe_in_environment, fill_command, list_given, list_substituted
from advisor.protocol.training.settling import list_unset, settle

_PLACES = {
    "strategy_file": "$strategy_file",
    "results_file": "/dev/null",
    "node_rank": "${NODE_RANK:-0}",
    "nodes": "${NODES:-1}",
    "master_addr": "${MASTER_ADDR:-127.0.0.1}",
    "master_port": "${MASTER_PORT:-29500}",
}
"""What the shell puts in the place of the session's own files and addresses."""
_MARK = "@advisor-place-"


def choose_values(advice: Advice, job: Job) -> dict[str, Value]:
    """Return the values that the command takes under the strategy, by knob: changed ones and those of the baseline."""
    return {**list_given(job.spec.workload), **advice.changes}


def export_command(advice: Advice, job: Job) -> Exported:
    """Return the launch script; arguments go to the command."""
    workload, values = settle(job.spec.workload, advice.changes), choose_values(advice, job)
    provenance = {name: advice.provenance.get(name, Provenance.CARRIED) for name in values}
    warnings = []
    if workload.environment:
        names = ", ".join(sorted(workload.environment))
        warnings.append(
            f"The job set variables of its own, whose values are not repeated here; set them too: {names}."
        )
    title = "Starts the training with the strategy's values; arguments go to its command."
    lines = ["set -euo pipefail"]
    if workload.working_dir != ".":
        lines.append(f"cd -- {shlex.quote(workload.working_dir)}")
    if values.keys() - list_substituted(workload.command).keys() or _uses_strategy_file(workload.command):
        lines += [
            f"export {name}={shlex.quote(text)}" for name, text in describe_in_environment(values).items()
        ]
        lines += [
            'strategy_file="$(mktemp)"',
            f'printf "%s" {shlex.quote(json.dumps(values))} > "$strategy_file"',
            'export ADVISOR_STRATEGY_FILE="$strategy_file"',
        ]
    lines += [f"unset {name}" for name in sorted(list_unset(job.spec.workload.own, advice.changes))]
    marked = fill_command(workload.command, values, {name: f"{_MARK}{name}@" for name in _PLACES})
    lines.append(f'exec {" ".join(map(_quote, marked))} "$@"')
    head = head_lines(advice, job, title, provenance, warnings)
    return Exported(
        format="command",
        filename="run.sh",
        media_type="text/x-shellscript; charset=utf-8",
        content="#!/usr/bin/env bash\n" + comment(head) + "\n".join(lines) + "\n",
        provenance=provenance,
        warnings=tuple(warnings),
    )


def _uses_strategy_file(command: tuple[str, ...]) -> bool:
    return any("${strategy_file}" in word for word in command)


def _quote(word: str) -> str:
    """Quote everything of a word but the places, which the shell fills in."""
    for name, text in _PLACES.items():
        before, mark, after = word.partition(f"{_MARK}{name}@")
        if mark:
            return f'{_quote(before) if before else ""}"{text}"{_quote(after) if after else ""}'
    return shlex.quote(word)
