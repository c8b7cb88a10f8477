"""The job that a command's options or a YAML file describe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from advisor.cli.exits import CommandFailed, Exit
from advisor.protocol.jobs import JobSpec


@dataclass(frozen=True)
class TuneOptions:
    """What `advisor tune` was asked; None leaves the documented default."""

    name: str = ""
    nodes: int = 1
    allow: str = "exact"
    trials: int | None = None
    minutes: float | None = None
    knobs: Sequence[str] = ()
    freeze: Sequence[str] = ()
    samples_per_step: int | None = None
    block_seconds: float | None = None
    protect: Sequence[Path] = ()
    min_gain_percent: float | None = None
    seed: int = 0


def spec_from_options(command: Sequence[str], options: TuneOptions, working_dir: Path) -> JobSpec:
    """Return the job for a launch command; raises `CommandFailed` (invalid spec)."""
    minutes, gain = options.minutes, options.min_gain_percent
    budget = {"max_trials": options.trials, "max_seconds": None if minutes is None else minutes * 60}
    return parse_spec(
        {
            "name": options.name or _name_from(command),
            "nodes": options.nodes,
            "allow": options.allow,
            "knobs": tuple(options.knobs),
            "freeze": tuple(options.freeze),
            "seed": options.seed,
            "budget": _given(budget),
            "measurement": _given({"block_s": options.block_seconds}),
            "workload": {
                "command": tuple(command),
                "working_dir": str(working_dir),
                "samples_per_step": options.samples_per_step,
                "protect": tuple(
                    str((working_dir / path.expanduser()).resolve()) for path in options.protect
                ),
            },
            **_given({"min_gain": None if gain is None else gain / 100}),
        }
    )


def spec_from_file(path: Path, command: Sequence[str]) -> JobSpec:
    """Return the job that a YAML file describes; a given `command` takes the place of the file's.

    A relative working directory is relative to the file. Raises `CommandFailed` (invalid spec).
    """
    try:
        body = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"{path} cannot be read: {error}", "Give a YAML file with a job's fields."
        ) from error
    if not isinstance(body, dict):
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{path} does not hold a job.",
            "It needs at least `workload: {command: [torchrun, --nproc-per-node, '2', train.py]}`.",
        )
    workload = body.get("workload", {})
    if isinstance(workload, dict):
        words = list(command) or workload.get("command")
        given = str(workload.get("working_dir", "."))
        body["workload"] = {
            **workload,
            # One line is how people write a command; splitting at blanks is all that is done to it.
            "command": words.split() if isinstance(words, str) else words,
            "working_dir": str((path.parent / given).resolve()),
        }
        if not body.get("name") and isinstance(body["workload"]["command"], list):
            body["name"] = _name_from([str(word) for word in body["workload"]["command"]])
    return parse_spec(body)


def parse_spec(body: dict[str, Any]) -> JobSpec:
    """Return the validated job; raises `CommandFailed` that names every wrong field."""
    try:
        return JobSpec.model_validate(body)
    except ValidationError as error:
        findings = [
            f"{'.'.join(str(part) for part in finding['loc']) or 'job'}: "
            f"{finding['msg'].removeprefix('Value error, ')}"
            for finding in error.errors()
        ]
        raise CommandFailed(
            Exit.INVALID_SPEC,
            "The job is not valid.",
            "Correct these; `advisor knobs` lists the knobs and `advisor tune --help` the options.",
            "\n".join(findings),
        ) from error


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _name_from(command: Sequence[str]) -> str:
    """The script's name without its ending, else the launcher's."""
    for word in command:
        if word.endswith(".py"):
            return Path(word).stem[:100]
    return Path(command[0]).name[:100] if command else ""
