"""Which knobs the program of a workload can take, by which way, and why not the others. Pure functions.

A PyTorch script takes what the runtime has a lever for. A command takes the knobs that stand in it as `${knob}` or
`${knob:-value of the baseline}`, and those that `workload.knobs` names, which it reads from its environment or from
the strategy file. A Paddle script takes what Paddle's dynamic graph really reads.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from advisor.protocol.base import Value
from advisor.protocol.expressions import FACTS, evaluate, list_names
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE, join_own
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.near_names import find_nearest
from advisor.protocol.training.command_options import list_stated
from advisor.protocol.training.own_knobs import read_value, spell
from advisor.protocol.training.workload import Workload, WorkloadKind

PLACES = ("strategy_file", "results_file", "node_rank", "nodes", "master_addr", "master_port")
"""Placeholders that are no knobs: files of the session, and how several nodes meet."""
PADDLE_KNOBS = ("fuse_grad_size_in_MB", "last_comm_group_size_MB")
"""Knobs that `paddle.DataParallel` acts on in the dynamic graph; fleet passes the strategy's fields on to it."""

_PLACEHOLDER = re.compile(r"\$(\$?)\{(\w+)(?::-([^}]*))?\}")
_TRUTHS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


class UntakenKnobs(ValueError):
    """The knobs of a workload make no sense; `sentences` has one for each fault."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__(" ".join(sentences))
        self.sentences = sentences


def list_given(workload: Workload) -> dict[str, Value]:
    """Return the knobs that a program is given in every launch, with the baseline's values: its own, and a command's.

    Raises UntakenKnobs naming every placeholder that is no knob, and every value that is none of its knob's.
    """
    own = {knob.name: knob.own_value for knob in workload.own}
    if workload.kind is not WorkloadKind.COMMAND:
        return own
    sentences: list[str] = []
    given: dict[str, Value] = {}
    wishes: list[tuple[str, object]] = [*_find_placeholders(workload.command), *workload.knobs.items()]
    # What is typed comes before what is left to the default: `${knob}` beside `${knob:-2}` means the same.
    for name, typed in sorted(wishes, key=lambda wish: wish[1] is None):
        if name in own:
            continue
        knob = CATALOGUE.get(name)
        if knob is None:
            sentences.append(
                f"{name} is neither a knob (advisor knobs lists them) nor one of {', '.join(PLACES)}; write "
                f"$${{{name}}} where the program itself is to see ${{{name}}}."
            )
            continue
        try:
            value = knob.default if typed is None else read_typed(knob, typed)
        except ValueError as error:
            sentences.append(f"The baseline's value: {error}.")
            continue
        if typed is not None and name in given and given[name] != value:
            sentences.append(
                f"{name} has two baselines, {given[name]} and {value}: give the same one everywhere."
            )
        given.setdefault(name, value)
    if not given and not own and not sentences:
        sentences.append(
            "The command takes no knob, so there is nothing to tune: write ${num_threads} or another knob's name into "
            "it, or name the knobs that it reads from ADVISOR_STRATEGY in workload.knobs."
        )
    if sentences:
        raise UntakenKnobs(sentences)
    return {**own, **given}


def list_constants(workload: Workload) -> dict[str, Value]:
    """Return what options of the command say that no knob is called by: requirements may name them."""
    taken = {knob.name for knob in workload.own} | CATALOGUE.keys() | {*FACTS}
    return {
        name: read_value(text) for name, text in list_stated(workload.command).items() if name not in taken
    }


def refuse_unknown_knobs(workload: Workload, cold: Mapping[str, Value] | None = None) -> None:
    """Raise ValueError naming every knob of a workload, and of its launch, that this release does not know."""
    list_given(workload)
    known = join_own(workload.own)
    for field, values in (("base", workload.base), ("cold", cold or {})):
        if unknown := [name for name in values if name not in known]:
            raise ValueError(f"{field} names {known.say_unknown(unknown)}")


def refuse_senseless_own(workload: Workload) -> None:
    """Raise ValueError for own knobs whose name means something else, and requirements that cannot hold."""
    for knob in workload.own:
        if knob.name in CATALOGUE:
            raise ValueError(
                f"{knob.name} is a knob that every job has: give its values with --values (in a file: values), or "
                "choose another name for yours"
            )
        if knob.name in (*PLACES, *FACTS):
            raise ValueError(
                f"{knob.name} means something else in commands and requirements: choose another name"
            )
    today = {**list_constants(workload), **{knob.name: knob.own_value for knob in workload.own}}
    known = {*today, *FACTS, *CATALOGUE}
    for text in workload.require:
        try:
            names = list_names(text)
            if unknown := [name for name in names if name not in known]:
                near = find_nearest(unknown[0], known)
                hint = f" (did you mean {' or '.join(near)}?)" if near else ""
                raise ValueError(
                    f"{unknown[0]} is neither a knob of this job{hint}, nor one of {', '.join(FACTS)}, nor an option "
                    f"with a value in the command: name it, or add the option --{unknown[0]}, as your script spells it"
                )
            if set(names) <= today.keys() and not evaluate(text, today):
                values = ", ".join(f"{name} is {today[name]}" for name in names)
                raise ValueError(
                    f"today's command breaks it ({values}), so nothing could be held against it: correct one of them"
                )
        except ValueError as error:
            raise ValueError(f"require {text!r}: {error}") from error


def list_substituted(command: Sequence[str]) -> dict[str, str]:
    """Return for every knob in the command the words that it stands in, as they were typed."""
    return {
        match[2]: word
        for word in command
        for match in _PLACEHOLDER.finditer(word)
        if not match[1] and match[2] in CATALOGUE
    }


def fill_command(
    command: Sequence[str], values: Mapping[str, Value], places: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the command with every `${…}` replaced, and `$${…}` as `${…}`; the rest of a word stays as it is."""

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        return places[match[2]] if match[2] in places else spell(values[match[2]])

    return tuple(_PLACEHOLDER.sub(replace, word) for word in command)


def describe_in_environment(values: Mapping[str, Value]) -> dict[str, str]:
    """Return the variables that tell a command these values: all as JSON, one for each, and Fleet's own variables."""
    return {
        "ADVISOR_STRATEGY": json.dumps(values),
        **{f"ADVISOR_KNOB_{name}": spell(value) for name, value in values.items()},
        **{
            name: spell(value)
            for name, value in values.items()
            if name in CATALOGUE and CATALOGUE[name].place is Place.ENVIRONMENT
        },
    }


def list_taken(workload: Workload) -> frozenset[str]:
    """Return the names of the knobs that the workload's program can take."""
    given = frozenset(list_given(workload))
    match workload.kind:
        case WorkloadKind.COMMAND:
            return given
        case WorkloadKind.PADDLE:
            return given | frozenset(PADDLE_KNOBS)
        case WorkloadKind.PYTORCH:
            return given | frozenset(name for name, knob in CATALOGUE.items() if not knob.carried)


def out_of_reach_because(workload: Workload, knob: Knob, taken: frozenset[str]) -> str | None:
    """Return a sentence where the workload's program cannot take the knob, else None."""
    if knob.name in taken:
        if knob.needs and knob.needs not in taken and workload.kind is WorkloadKind.COMMAND:
            return f"It means nothing without {knob.needs}, which the command does not take."
        return None
    match workload.kind:
        case WorkloadKind.COMMAND:
            return "The command does not take it: neither a ${…} in it nor --reads (workload.knobs) names it."
        case WorkloadKind.PADDLE:
            return (
                "Paddle's dynamic graph does not act on it in a way that was seen to work: the exports carry it at its "
                "default."
            )
        case WorkloadKind.PYTORCH:
            return knob.realised


def read_typed(knob: Knob, typed: object) -> Value:
    """Return what people typed as a value of the knob; raises ValueError with a sentence."""
    if isinstance(typed, str) and knob.kind is bool:
        return knob.parse(_TRUTHS.get(typed.lower(), typed))
    if isinstance(typed, str) and knob.kind in (int, float):
        with suppress(ValueError):
            typed = float(typed)
    return knob.parse(typed)


def fit_values(workload: Workload, knob: Knob, values: Sequence[Value]) -> tuple[Value, ...]:
    """Return those of the values, in order, that the workload's program can take as they are.

    The field of a Paddle strategy that holds the size of a bucket takes whole MB only.
    """
    if workload.kind is WorkloadKind.PADDLE and knob.name == "fuse_grad_size_in_MB":
        return tuple(sorted({max(1.0, float(round(float(value)))) for value in values}))
    return tuple(values)


def _find_placeholders(command: Sequence[str]) -> list[tuple[str, str | None]]:
    return [
        (match[2], match[3])
        for word in command
        for match in _PLACEHOLDER.finditer(word)
        if not match[1] and match[2] not in PLACES
    ]
