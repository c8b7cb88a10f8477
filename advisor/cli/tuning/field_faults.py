"""What is wrong with a job, in the words in which it was given: an option's name, or a line of its file."""

from collections.abc import Collection, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from advisor.cli.tuning.filled_options import list_options
from advisor.cli.tuning.job_options import TuneOptions
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.near_names import find_nearest

_OPTIONS = {option.fills.field: option for option in list_options(TuneOptions)}
_COMMAND = "workload.command"
_KINDS = {
    "tuple_type": "it has to be a list",
    "list_type": "it has to be a list",
    "model_type": "it has to hold fields",
    "model_attributes_type": "it has to hold fields",
    "dict_type": "it has to hold fields",
    "missing": "it is missing",
}


def list_faults(
    error: ValidationError, typed: Collection[str] = (), source: str = "", text: str = ""
) -> list[str]:
    """Return a sentence for each fault.

    `source` names the file whose text this is, none where options were given; `typed` are the fields that options
    filled beside a file.
    """
    lines = yaml.compose(text) if source else None
    faults = []
    for finding in error.errors():
        path = [str(part) for part in finding["loc"]]
        told = _say(path, finding)
        if source and not set(typed).intersection(_list_around(path)):
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


def _list_around(path: Sequence[str]) -> list[str]:
    """A place in a job, and all that it lies in: `budget.max_trials`, `budget`."""
    return [".".join(path[:length]) for length in range(len(path), 0, -1)]


def _name_option(path: Sequence[str], given: object) -> str:
    """`--minutes -5`; the field itself where no option fills it."""
    around = _list_around(path)
    if _COMMAND in around:
        return "the launch command"
    option = next((_OPTIONS[field] for field in around if field in _OPTIONS), None)
    if option is None:
        return ".".join(path) or "job"
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return option.flag
    value = given / option.fills.unit if option.fills.unit != 1.0 and not isinstance(given, str) else given
    return f"{option.flag} {value:g}" if isinstance(value, float) else f"{option.flag} {value}"


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
