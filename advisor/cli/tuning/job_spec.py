"""The job that a command's options or a YAML file describe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.built_in import launch_built_in
from advisor.cli.tuning.field_faults import list_faults
from advisor.protocol.asked.jobs import JobSpec, Priority
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.nearest import say_unknown_knobs
from advisor.protocol.knobs.reach import read_typed
from advisor.protocol.nodes.labels import read_label
from advisor.protocol.nodes.testbed import Testbed, parse_testbed
from advisor.protocol.training.workload import Injection


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


@dataclass(frozen=True)
class Where:
    """Which agents a job wants, and how soon; None and empty leave what a file says, or the default."""

    priority: Priority | None = None
    pool: str | None = None
    needs: Sequence[str] = ()
    """`rack=7`: labels that each node must have."""
    within: str | None = None

    def list_fields(self) -> dict[str, Any]:
        """Return what was said, as fields of a job."""
        needs = dict(_read_label("--needs", text) for text in self.needs) or None
        return _given({"priority": self.priority, "pool": self.pool, "needs": needs, "within": self.within})


@dataclass(frozen=True)
class TuneOptions:
    """What `advisor tune` was asked; None leaves the documented default."""

    name: str = ""
    nodes: int = 1
    testbed: Testbed | None = None
    kind: str = "pytorch"
    reads: Sequence[str] = ()
    """`num_threads` or `num_threads=2`: knobs that a command reads from its environment."""
    pattern: str = ""
    allow: str = "exact"
    trials: int | None = None
    minutes: float | None = None
    device_hours: float | None = None
    gangs: int = 1
    knobs: Sequence[str] = ()
    freeze: Sequence[str] = ()
    values: Sequence[str] = ()
    """`num_threads=1,2`: the only values to try of a knob."""
    labels: Sequence[str] = ()
    """`project=bert`: words to find the job by."""
    where: Where = Where()
    samples_per_step: int | None = None
    block_seconds: float | None = None
    injection: Injection = Injection.AUTO
    protect: Sequence[Path] = ()
    min_gain_percent: float | None = None
    from_checkpoint: bool = False
    webhooks: Sequence[str] = ()
    seed: int = 0
    verify: Mapping[str, Value] = field(default_factory=dict)
    """Only hold this strategy against the script as it stands."""
    base: Mapping[str, Value] = field(default_factory=dict)
    """What stands in the ranks beside the script's own."""


@dataclass(frozen=True)
class FileOverrides:
    """What was typed beside a job's file; None and empty leave the file's own."""

    gangs: int | None = None
    device_hours: float | None = None
    nodes: int | None = None
    allow: str | None = None
    trials: int | None = None
    minutes: float | None = None
    values: Sequence[str] = ()
    webhooks: Sequence[str] = ()
    labels: Sequence[str] = ()
    where: Where = Where()


NO_OVERRIDES = FileOverrides()


def spec_from_options(command: Sequence[str], options: TuneOptions, working_dir: Path) -> JobSpec:
    """Return the job for a launch command; raises `CommandFailed` (invalid spec)."""
    minutes, gain = options.minutes, options.min_gain_percent
    budget = {
        "max_trials": options.trials,
        "max_seconds": None if minutes is None else minutes * 60,
        "max_device_hours": options.device_hours,
    }
    return parse_spec(
        {
            "name": options.name or _name_from(command),
            "nodes": options.nodes,
            "testbed": options.testbed,
            "allow": options.allow,
            "knobs": tuple(options.knobs),
            "freeze": tuple(options.freeze),
            "values": dict(map(_read_values, options.values)),
            "labels": dict(_read_label("--label", text) for text in options.labels),
            **options.where.list_fields(),
            "gangs": options.gangs,
            "webhooks": tuple(options.webhooks),
            "seed": options.seed,
            "from_checkpoint": options.from_checkpoint,
            "verify": dict(options.verify),
            "budget": _given(budget),
            "measurement": _given({"block_s": options.block_seconds}),
            "workload": {
                "kind": options.kind,
                "command": tuple(command),
                "knobs": dict(map(_read_knob, options.reads)),
                "pattern": options.pattern,
                "base": dict(options.base),
                "working_dir": str(working_dir),
                "samples_per_step": options.samples_per_step,
                "injection": options.injection,
                "protect": tuple(
                    str((working_dir / path.expanduser()).resolve()) for path in options.protect
                ),
            },
            **_given({"min_gain": None if gain is None else gain / 100}),
        }
    )


def spec_from_file(path: Path, command: Sequence[str], overrides: FileOverrides = NO_OVERRIDES) -> JobSpec:
    """Return the job that a YAML file describes; a given `command` takes the place of the file's, so do `overrides`.

    A relative working directory is relative to the file. Raises `CommandFailed` (invalid spec).
    """
    try:
        text = path.read_text()
        body = yaml.safe_load(text)
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
            body["name"] = _name_from([str(word) for word in words])
    return parse_spec(_override(body, overrides), str(path), text)


def read_testbed(text: str) -> Testbed:
    """Return the testbed that `nodes=2,rate=1gbit` means; raises `CommandFailed` (invalid spec)."""
    try:
        return parse_testbed(text)
    except ValueError as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"{text!r} does not describe a testbed.", str(error)
        ) from error


def parse_spec(body: dict[str, Any], source: str = "", text: str = "") -> JobSpec:
    """Return the validated job; raises `CommandFailed` that names every wrong option, or line of the file `source`."""
    try:
        return JobSpec.model_validate(body)
    except ValidationError as error:
        where = "docs/job-file.md has every field" if source else "`advisor tune --help` lists the options"
        raise CommandFailed(
            Exit.INVALID_SPEC,
            "The job is not valid.",
            f"Correct these; `advisor knobs` lists the knobs, and {where}.",
            "\n".join(list_faults(error, source, text)),
        ) from error


def _override(body: dict[str, Any], overrides: FileOverrides) -> dict[str, Any]:
    """The file's fields with those in place that were typed beside it."""
    changed = body | overrides.where.list_fields()
    if overrides.labels and isinstance(body.get("labels", {}), dict):
        typed = dict(_read_label("--label", text) for text in overrides.labels)
        changed["labels"] = {**body.get("labels", {}), **typed}
    changed |= _given({"gangs": overrides.gangs, "nodes": overrides.nodes, "allow": overrides.allow})
    budget = _given(
        {
            "max_device_hours": overrides.device_hours,
            "max_trials": overrides.trials,
            "max_seconds": None if overrides.minutes is None else overrides.minutes * 60,
        }
    )
    if budget and isinstance(body.get("budget", {}), dict):
        changed["budget"] = {**body.get("budget", {}), **budget}
    if overrides.values and isinstance(body.get("values", {}), dict):
        changed["values"] = {**body.get("values", {}), **dict(map(_read_values, overrides.values))}
    if overrides.webhooks:
        changed["webhooks"] = tuple(overrides.webhooks)
    return changed


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


def _read_knob(text: str) -> tuple[str, Value]:
    """`num_threads=2` as name and value; the documented default where no value is given."""
    name, equals, typed = text.partition("=")
    knob = CATALOGUE.get(name)
    if knob is None:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"--reads {text}: {say_unknown_knobs([name])}.",
            "Write it as --reads num_threads=2.",
        )
    try:
        return name, read_typed(knob, typed) if equals else knob.default
    except ValueError as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"--reads {text}: {error}.", f"`advisor knobs {name}` says what it takes."
        ) from error


def _read_values(text: str) -> tuple[str, tuple[Value, ...]]:
    """`num_threads=1,2` as the knob's name and the values to try."""
    name, equals, typed = text.partition("=")
    knob = CATALOGUE.get(name)
    words = [word.strip() for word in typed.split(",") if word.strip()]
    if knob is None or not equals or not words:
        wrong = say_unknown_knobs([name]) if knob is None else "it names no value"
        raise CommandFailed(
            Exit.INVALID_SPEC, f"--values {text}: {wrong}.", "Write it as --values num_threads=1,2."
        )
    try:
        return name, tuple(read_typed(knob, word) for word in words)
    except ValueError as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"--values {text}: {error}.", f"`advisor knobs {name}` says what it takes."
        ) from error


def _read_label(option: str, text: str) -> tuple[str, str]:
    try:
        return read_label(text)
    except ValueError as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"{option} {text}: it has no value.", f"Write it as {option} rack=7."
        ) from error


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _name_from(command: Sequence[str]) -> str:
    """The script's name without its ending, else the launcher's."""
    for word in command:
        if word.endswith((".py", ".sh")):
            return Path(word).stem[:100]
    return Path(command[0]).name[:100] if command else ""
