"""Options declared as a class: how each fills a field of a job, and how a command gets them all."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Any, get_args, get_type_hints

SEARCH, TRAINED, WHERE = "What is searched", "What is trained", "Where it is measured"
"""Panels of the help: what is not needed every day stands below what is."""


@dataclass(frozen=True)
class Fills:
    """The field of a job that an option fills, `budget.max_seconds`, and how."""

    field: str
    unit: float = 1.0
    """What the field counts one of the option's as: 60 where minutes are typed and seconds kept."""
    read: Callable[[Any], Any] = lambda typed: typed
    """What was typed as the field's value; raises `CommandFailed` (invalid spec)."""


@dataclass(frozen=True)
class Option:
    """One option as it is declared."""

    name: str
    """Of its parameter."""
    flag: str
    """As it is typed: `--max-device-hours`."""
    fills: Fills


def list_options(declared: type) -> tuple[Option, ...]:
    """Return the options of a class, once for each field that they fill."""
    hints = get_type_hints(declared, include_extras=True)
    options = []
    for field in fields(declared):
        flag = f"--{field.name.strip('_').replace('_', '-')}"
        given = get_args(hints[field.name])
        options += [Option(field.name, flag, fills) for fills in given if isinstance(fills, Fills)]
    return tuple(options)


def takes(**declared: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of classes in place of parameters, which get what was typed: `options=TuneOptions`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**typed: Any) -> None:
            own = {
                name: each(**{field.name: typed.pop(field.name) for field in fields(each)})
                for name, each in declared.items()
            }
            command(**typed, **own)

        parameters = tuple(_list_parameters(command, declared))
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _list_parameters(
    command: Callable[..., None], declared: Mapping[str, type]
) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name not in declared:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        hints = get_type_hints(declared[parameter.name], include_extras=True)
        for field in fields(declared[parameter.name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
            )


def put(body: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a field at a place, beside the dictionary or list that is there; the model judges the value later."""
    first, *rest = path
    there = body.get(first, {})
    if rest:
        if isinstance(there, dict):
            body[first] = dict(there)
            put(body[first], rest, value)
    elif isinstance(value, dict) and isinstance(there, dict):
        body[first] = {**there, **value}
    elif isinstance(value, list) and isinstance(there, list):
        body[first] = [*there, *value]
    else:
        body[first] = value
