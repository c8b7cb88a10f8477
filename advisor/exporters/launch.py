"""`run.sh`, with which the user's own command trains under the strategy, and the runtime's archive that it needs."""

import base64
import io
import json
import re
import shlex
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from advisor import __version__
from advisor.exporters.format import COMMAND as OF_COMMANDS
from advisor.exporters.format import PYTORCH, SHELL, Format, Written, comment
from advisor.exporters.words import idle_because, typed_values
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.reach import describe_in_environment, fill_command, list_given, list_substituted
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.settling import list_file_values, list_unset, replace_path, settle
from advisor.protocol.training.workload import Workload

ARCHIVE = "fleet_advisor_runtime.pyz"
"""The archive with the runtime."""
LEVERS = tuple(name for name, knob in CATALOGUE.items() if not knob.carried)
_TITLE = (
    f"Trains for real under the strategy in strategy.json by the runtime in {ARCHIVE}, both beside it; arguments go to "
    "the script. Every change comes into force in the ranks themselves, which say so with the proof."
)
_FIND_RUNTIME = (
    f'runtime="$here/{ARCHIVE}"',
    f'[[ -f $runtime ]] || {{ echo "No {ARCHIVE} beside $0: advisor export JOB --format runtime writes it." >&2; '
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
_PACKAGE = ARCHIVE.partition(".")[0]
"""The one in the archive."""
_FOLDER = Path(__file__).parents[2] / "agent" / "runtime"
_MAIN = f'''\
"""Fleet Advisor's runtime, version {__version__}: python {ARCHIVE} [--strategy strategy.json] COMMAND..."""

from {_PACKAGE}.inject.start_training import main

main()
'''
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
_CHANGE_FILE = """\
import json, sys
given, copy, values = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with open(given) as file:
    tree = json.load(file)
for key, value in values.items():
    *path, last = key.split(".")
    at = tree
    for name in path:
        at = at.get(name) if isinstance(at, dict) else None
    if not isinstance(at, dict) or last not in at:
        sys.exit(f"{given} has no key {key}, in which the strategy has {value}: name a file that has it.")
    at[last] = str(value).lower() in ("1", "true", "on", "yes") if isinstance(at[last], bool) else value
with open(copy, "w") as file:
    json.dump(tree, file, indent=2)"""
"""Writes a changed copy of a file of JSON, as trials read one."""


def _carry_everything(advice: Advice) -> Written:
    """Every change as one that the runtime puts in force, except those that are idle."""
    values, made = typed_values(advice), Written()
    for knob in advice.changes:
        if (because := idle_because(knob, values)) is not None:
            made.unmapped[knob] = because
        else:
            made.provenance[knob] = advice.provenance.get(knob, Provenance.CARRIED)
    return made


def _warn_of_environment(job: Job) -> list[str]:
    if not job.spec.workload.environment:
        return []
    names = ", ".join(sorted(job.spec.workload.environment))
    return [f"The job set variables of its own, whose values are not repeated here; set them too: {names}."]


def write_torchrun(advice: Advice, job: Job) -> Written:
    """Return the launch script. It carries every change, by the same means as the trials."""
    made = _carry_everything(advice)
    made.warnings = _warn_of_environment(job)
    workload, copies = _copy_files(made, advice, job, "$python")
    script = _write_script(job, workload, copies)
    made.content = "#!/usr/bin/env bash\n" + comment(made.head(advice, job, _TITLE)) + script
    return made


def _copy_files(made: Written, advice: Advice, job: Job, python: str) -> tuple[Workload, list[str]]:
    """Return the workload under the strategy, and the lines that make the changed copies its command names.

    What lies in a file of another kind than JSON is not carried: the sentence says what to write there.
    """
    workload, lines = settle(job.spec.workload, advice.changes), []
    for number, (path, keys) in enumerate(list_file_values(job.spec.workload, advice.changes).items()):
        if not path.endswith(".json"):
            for knob in job.spec.workload.own:
                if knob.file and knob.file[0] == path and knob.name in advice.changes:
                    made.provenance.pop(knob.name, None)
                    made.unmapped[knob.name] = (
                        f"Write {knob.file[1]} = {advice.changes[knob.name]} into {path} yourself: trials read a "
                        "changed copy, and no shell writes one of this kind of file."
                    )
            continue
        name = f"changed{number}"
        lines += [
            f'{name}="$(mktemp -d)"/{shlex.quote(Path(path).name)}',
            f'"{python}" - {shlex.quote(path)} "${name}" {shlex.quote(json.dumps(keys))} <<\'END\'',
            _CHANGE_FILE,
            "END",
        ]
        workload = workload.model_copy(
            update={"command": replace_path(workload.command, path, f"{_MARK}{name}@")}
        )
    return workload, lines


def _write_script(job: Job, workload: Workload, copies: list[str]) -> str:
    lines = [
        "set -euo pipefail",
        'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        *_FIND_RUNTIME,
        *_FIND_PYTHON,
    ]
    if job.spec.workload.working_dir != ".":
        lines.append(f"cd -- {shlex.quote(job.spec.workload.working_dir)}")
    launch = Command.read(workload.command).launch
    words = [*map(_quote, workload.command)]
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
        words += map(_quote, [*launch.script, *launch.arguments])
    lines += copies
    run = 'exec "$python" "$runtime" --strategy "$here/strategy.json" --'
    return "\n".join([*lines, f'{run} {" ".join(words)} "$@"']) + "\n"


def _write_runtime(advice: Advice, _: Job) -> Written:
    """The archive. It is the same for every strategy, and reads the one in strategy.json beside it."""
    made = _carry_everything(advice)
    made.content = base64.b64encode(pack_runtime()).decode()
    return made


@cache
def pack_runtime() -> bytes:
    """Return the archive's bytes, the same ones for one version of this package."""
    sources = {
        f"{_PACKAGE}/{path.relative_to(_FOLDER).as_posix()}": path.read_bytes()
        for path in sorted(_FOLDER.rglob("*"))
        if path.suffix in {".py", ".c"}
    }
    texts = {"__main__.py": _MAIN, "VERSION": f"{__version__}\n", "LICENSE": _read_license()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in ({name: text.encode() for name, text in texts.items()} | sources).items():
            entry = zipfile.ZipInfo(name)  # of 1980, whenever the file was written
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def _read_license() -> str:
    try:
        text = distribution("fleet-advisor").read_text("licenses/LICENSE")
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        text = (_FOLDER.parents[1] / "LICENSE").read_text()
    if text is None:
        raise RuntimeError("The installed fleet-advisor lacks its licenses/LICENSE. Reinstall it.")
    return text


def _write_command(advice: Advice, job: Job) -> Written:
    """The launch script of a command workload; arguments go to the command.

    The command takes the values that were changed, and those of the baseline.
    """
    values = {**list_given(job.spec.workload), **advice.changes}
    made = Written(
        provenance={name: advice.provenance.get(name, Provenance.CARRIED) for name in values},
        warnings=_warn_of_environment(job),
    )
    workload, copies = _copy_files(made, advice, job, "${PYTHON:-python3}")
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
    lines += [f"unset {name}" for name in sorted(list_unset(job.spec.workload.own, advice.changes))] + copies
    marked = fill_command(workload.command, values, {name: f"{_MARK}{name}@" for name in _PLACES})
    lines.append(f'exec {" ".join(map(_quote, marked))} "$@"')
    head = made.head(
        advice, job, "Starts the training with the strategy's values; arguments go to its command."
    )
    made.content = "#!/usr/bin/env bash\n" + comment(head) + "\n".join(lines) + "\n"
    return made


def _uses_strategy_file(command: tuple[str, ...]) -> bool:
    return any("${strategy_file}" in word for word in command)


def _quote(word: str) -> str:
    """Quote everything of a word but the places and copies, which the shell fills in."""
    parts = re.split(rf"{_MARK}(\w+)@", word)
    if len(parts) == 1:
        return shlex.quote(word)
    texts = [
        f'"{_PLACES.get(part, f"${part}")}"' if place % 2 else part and shlex.quote(part)
        for place, part in enumerate(parts)
    ]
    return "".join(texts)


TORCHRUN = Format(
    name="torchrun", filename="run.sh", media_type=SHELL, knobs=LEVERS, kinds=PYTORCH, bundled=PYTORCH,
    needs=("json", "runtime"), write=write_torchrun,
    meaning="Your own launch command behind the runtime: every change in force and proved, no line of the script "
    f"changed. Save strategy.json and {ARCHIVE} beside it.",
)  # fmt: skip
RUNTIME = Format(
    name="runtime", filename=ARCHIVE, media_type="application/zip", knobs=LEVERS, kinds=PYTORCH, bundled=PYTORCH,
    needs=("json",), encoding="base64", write=_write_runtime,
    meaning="The runtime that measured the strategy, for nodes without fleet-advisor: put it before a launch command "
    "or, behind a launcher, before the script's name. Reads strategy.json beside it.",
)  # fmt: skip
COMMAND = Format(
    name="command", filename="run.sh", media_type=SHELL, knobs=tuple(CATALOGUE), kinds=OF_COMMANDS,
    bundled=OF_COMMANDS, write=_write_command,
    meaning="Your own command with the strategy's values in it and in its environment.",
)  # fmt: skip
