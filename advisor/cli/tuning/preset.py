"""A preset: own knobs and requirements of a well-known training, in a file as users write it, put into a job."""

from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from advisor.cli.exits import CommandFailed, Exit
from advisor.protocol.training.command_options import find_option, list_options, take_out
from advisor.protocol.training.own_knob_texts import TypedKnob
from advisor.protocol.training.own_knobs import OwnKnob, find_baseline

_FIELDS = frozenset({"kind", "pattern", "samples_per_step", "injection", "environment", "own", "require"})
TODAY = "today"
"""The value of a choice between words for those that the command has, where they are none of the preset's."""


def list_presets() -> list[str]:
    """Return the names of the presets that are shipped."""
    found = package_files("advisor.cli.tuning").joinpath("presets").iterdir()
    return sorted(each.name.removesuffix(".yaml") for each in found if each.name.endswith(".yaml"))


def add_preset(name: str, workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload with a preset's fields; what the workload has itself takes the place of the preset's.

    Raises `CommandFailed` (invalid spec) naming what cannot be read, and the options that the command has to have.
    """
    preset = _read(name)
    command: Sequence[str] = workload["command"]
    given = [_read_knob(name, knob) for knob in workload.get("own", ())]
    taken = {knob.name for knob in given} | {knob.at for knob in given if knob.at}
    own = [_read_knob(name, knob) for knob in preset.pop("own", ())]
    own = [knob for knob in own if not {knob.name, knob.at} & taken]
    missing = [
        knob.at
        for knob in own
        if knob.at.startswith("-") and knob.baseline is None and find_option(command, knob.at) is None
    ]
    if missing:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"--preset {name}: the command has no {', '.join(missing)}.",
            "Add each with the value that your training has today, so that there is something to hold others against.",
        )
    return {
        **preset,
        **workload,
        "own": [*(_fit(knob, command) for knob in own), *workload.get("own", ())],
        "require": [*preset.get("require", ()), *workload.get("require", ())],
    }


def _read(name: str) -> dict[str, Any]:
    """Read a preset, or a user's file; of a job's file its workload."""
    shipped = list_presets()
    try:
        if name in shipped:
            text = package_files("advisor.cli.tuning").joinpath("presets", f"{name}.yaml").read_text("utf-8")
        else:
            text = Path(name).read_text("utf-8")
        body = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"--preset {name} cannot be read: {error}",
            f"Give one of {', '.join(shipped)}, or a YAML file of yours.",
        ) from error
    workload = body.get("workload") if isinstance(body, dict) else None
    unknown = sorted(map(str, workload.keys() - _FIELDS)) if isinstance(workload, dict) else []
    if not isinstance(workload, dict) or unknown:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"--preset {name}: {f'workload has {unknown[0]}' if unknown else 'it has no workload'}.",
            f"A preset has a workload with some of {', '.join(sorted(_FIELDS))}, as in a job's file.",
        )
    return workload


def _read_knob(name: str, given: object) -> OwnKnob:
    try:
        return TypeAdapter[OwnKnob](TypedKnob).validate_python(given)
    except ValidationError as error:
        told = "; ".join(str(each["msg"]).removeprefix("Value error, ") for each in error.errors())
        raise CommandFailed(
            Exit.INVALID_SPEC, f"--preset {name}: {told}.", "docs/own-knobs.md says how knobs are written."
        ) from error


def _fit(knob: OwnKnob, command: Sequence[str]) -> OwnKnob:
    """A preset's knob with what this command has today."""
    if find_option(command, knob.at) is not None:
        return knob.model_copy(update={"baseline": None})
    _, taken = take_out(command, list_options(knob.words.values()))
    if not taken or find_baseline(knob, command, {}) is not None:
        return knob
    words = {TODAY: tuple(taken), **knob.words}
    return knob.model_copy(update={"words": words, "values": tuple(words), "baseline": TODAY})
