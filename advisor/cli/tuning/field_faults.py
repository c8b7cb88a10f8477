"""What is wrong with a job, in the words in which it was given: an option's name, or a line of its file."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.knobs.nearest import find_nearest

OPTIONS: Mapping[str, str] = {
    "allow": "--allow",
    "budget.max_device_hours": "--max-device-hours",
    "budget.max_seconds": "--minutes",
    "budget.max_trials": "--trials",
    "freeze": "--freeze",
    "gangs": "--gangs",
    "knobs": "--knob",
    "labels": "--label",
    "measurement.block_s": "--block-seconds",
    "min_gain": "--min-gain",
    "name": "--name",
    "needs": "--needs",
    "nodes": "--nodes",
    "pool": "--pool",
    "priority": "--priority",
    "seed": "--seed",
    "values": "--values",
    "webhooks": "--webhook",
    "within": "--within",
    "workload.command": "the launch command",
    "workload.knobs": "--reads",
    "workload.pattern": "--pattern",
    "workload.protect": "--protect",
    "workload.samples_per_step": "--samples-per-step",
}
"""The options of `advisor tune` by the fields of a job that they fill."""
_UNITS = {"budget.max_seconds": 60.0, "min_gain": 0.01}
"""What an option counts in, where the field counts otherwise: minutes, per cent."""
_KINDS = {
    "tuple_type": "it has to be a list",
    "list_type": "it has to be a list",
    "model_type": "it has to hold fields",
    "model_attributes_type": "it has to hold fields",
    "dict_type": "it has to hold fields",
    "missing": "it is missing",
}


def list_faults(error: ValidationError, source: str = "", text: str = "") -> list[str]:
    """Return a sentence for each fault; `source` names the file whose text this is, none where options were given."""
    lines = yaml.compose(text) if source else None
    faults = []
    for finding in error.errors():
        path = [str(part) for part in finding["loc"]]
        told = _say(path, finding)
        if source:
            faults.append(f"{source}:{_find_line(lines, finding['loc'])}: {'.'.join(path) or 'job'}: {told}")
        else:
            faults.append(f"{_name_option(path, finding['input'])}: {told}")
    return faults


def _say(path: Sequence[str], finding: Any) -> str:
    if finding["type"] == "extra_forbidden":
        near = find_nearest(path[-1], _list_fields(path[:-1]))
        return f"there is no such field{f'; did you mean {near[0]}?' if near else ''}"
    said = str(finding["msg"]).removeprefix("Value error, ")
    return _KINDS.get(finding["type"], said.replace("Input should be", "it has to be"))


def _list_fields(path: Sequence[str]) -> list[str]:
    """The fields that a job has at a place."""
    model: Any = JobSpec
    for part in path:
        found = model.model_fields.get(part)
        model = None if found is None else found.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return []
    return list(model.model_fields)


def _name_option(path: Sequence[str], given: object) -> str:
    """`--minutes -5`; the field itself where no option fills it."""
    for length in range(len(path), 0, -1):
        field = ".".join(path[:length])
        if (option := OPTIONS.get(field)) is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            return option
        value = given / _UNITS[field] if field in _UNITS and not isinstance(given, str) else given
        return f"{option} {value:g}" if isinstance(value, float) else f"{option} {value}"
    return ".".join(path) or "job"


def _find_line(node: Any, path: Sequence[object]) -> int:
    """The line of a field, or of the nearest one around it that the file has."""
    line = 1
    for part in path:
        found = None
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == str(part)]
            found = pairs[0] if pairs else None
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = (node.value[part], node.value[part])
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line
