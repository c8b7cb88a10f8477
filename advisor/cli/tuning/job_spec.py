"""The job that a command's options or a YAML file describe."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.built_in import launch_built_in
from advisor.cli.tuning.field_faults import list_faults
from advisor.cli.tuning.job_options import JobOptions, TuneOptions, read_testbed
from advisor.protocol.asked.jobs import JobSpec

_NOTHING_TYPED = JobOptions()
_LAUNCHERS = frozenset({"torch.distributed.run", "torch.distributed.launch", "paddle.distributed.launch"})


@dataclass(frozen=True)
class WantedJob:
    """What was asked for: a job to resume or to continue by name, or a specification."""

    spec: JobSpec | None
    resume: str | None = None
    more: str | None = None
    """A job that has ended and gets more budget."""
    more_seconds: float | None = None
    """How much; None leaves it to what its advice says."""
    more_trials: int = 0
    new: bool = False
    """Do not resume an unfinished job, and give up those that stand in the way."""
    pauses: bool = False
    """Pause those that stand in the way instead: each of them is a question of its own."""


def spec_from_options(
    command: Sequence[str],
    options: TuneOptions,
    working_dir: Path,
    further: Mapping[str, Any] = MappingProxyType({}),
) -> JobSpec:
    """Return the job for a launch command; `further` are fields of it that no option fills.

    Raises `CommandFailed` (invalid spec).
    """
    workload = {"command": tuple(command), "working_dir": str(working_dir), **further.get("workload", {})}
    return parse_spec(options.fill({"name": name_command(command), **further, "workload": workload}))


def spec_from_file(path: Path, command: Sequence[str], options: JobOptions = _NOTHING_TYPED) -> JobSpec:
    """Return the job that a YAML file describes; a given `command` takes the place of the file's, so do `options`.

    A relative working directory is relative to the file. Raises `CommandFailed` (invalid spec).
    """
    try:
        text = path.read_text()
        body = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{path} cannot be read: {error}",
            "Give a YAML file with a job's fields; a "
            "command is measured by `advisor tune -- COMMAND`, without a file.",
        ) from error
    if not isinstance(body, dict):
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{path} does not hold a job.",
            "It needs at least `workload: {command: [torchrun, --nproc-per-node, '2', train.py]}`.",
        )
    if isinstance(body.get("testbed"), str):
        body["testbed"] = read_testbed(body["testbed"])
        body.setdefault("nodes", body["testbed"].nodes)
    workload = body.get("workload", {})
    if isinstance(workload, dict):
        workload = _with_built_in(workload)
        words = list(command) or workload.get("command")
        given = str(workload.get("working_dir", "."))
        # One line is how people write a command; splitting at blanks is all that is done to it.
        words = words.split() if isinstance(words, str) else words
        body["workload"] = {
            **workload,
            **({} if words is None else {"command": words}),
            "working_dir": str((path.parent / given).resolve()),
        }
        if not body.get("name") and isinstance(words, list):
            body["name"] = name_command([str(word) for word in words])
    return parse_spec(options.fill(body), options.list_filled(), str(path), text)


def parse_spec(
    body: dict[str, Any], typed: Collection[str] = (), source: str = "", text: str = ""
) -> JobSpec:
    """Return the validated job; raises `CommandFailed` that names every wrong option, or line of the file `source`.

    `typed`: fields that an option filled beside the file.
    """
    try:
        return JobSpec.model_validate(body)
    except ValidationError as error:
        where = "docs/job-file.md has every field" if source else "`advisor tune --help` lists the options"
        raise CommandFailed(
            Exit.INVALID_SPEC,
            "The job is not valid.",
            f"Correct these; `advisor knobs` lists the knobs, and {where}.",
            "\n".join(list_faults(error, typed, source, text)),
        ) from error
    except ArithmeticError as error:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            "The job holds a number too large, or too close to 0, to calculate with.",
            "Give numbers that quantities can have.",
        ) from error


def _with_built_in(workload: dict[str, Any]) -> dict[str, Any]:
    """A workload that names a built-in training, with that one's launch command in place of the name."""
    if "built_in" not in workload:
        return workload
    rest = {
        key: value
        for key, value in workload.items()
        if key not in {"built_in", "nproc_per_node", "arguments"}
    }
    arguments = workload.get("arguments", [])
    words = arguments.split() if isinstance(arguments, str) else [str(word) for word in arguments]
    return {
        **rest,
        "command": launch_built_in(str(workload["built_in"]), workload.get("nproc_per_node"), words),
    }


def name_command(command: Sequence[str]) -> str:
    """Return the script's name without its ending, else the module's or launcher's; never that of `env` before it."""
    for word in command:
        if word.endswith((".py", ".sh")) and len(word.split()) == 1:  # not what `bash -c` is given
            return Path(word).stem[:100]
    words = list(command)
    while words and (Path(words[0]).name == "env" or "=" in words[0] or words[0].startswith("-")):
        words.pop(0)
    modules = [after for word, after in pairwise(words) if word == "-m" and after not in _LAUNCHERS]
    name = modules[-1].rpartition(".")[2] if modules else Path(words[0]).name if words else ""
    return name[:100]
