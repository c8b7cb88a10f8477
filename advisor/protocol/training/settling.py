"""Puts a strategy's own knobs where the program reads them: everything behind it sees an ordinary command.

The agent's launch, `advisor run` and the exports settle a workload in this one way. Pure functions.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.training.command_options import (
    find_option,
    has_words,
    list_options,
    split_variables,
    take_out,
)
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.own_knobs import (
    INHERITED,
    PLACEHOLDER,
    UNSET,
    OwnKnob,
    spell,
)
from advisor.protocol.training.workload import Workload, count_samples


def settle(workload: Workload, values: Mapping[str, Value]) -> Workload:
    """Return the workload with its own knobs put where its command and its environment hold them.

    `values` need not name all of them: the rest has the baseline's. Keys of files are the launch's affair
    (`list_file_values`), because a copy is what it writes them to.
    """
    command, environment = list(workload.command), dict(workload.environment)
    for knob in workload.own:
        value = values.get(knob.name, knob.own_value)
        if knob.words:
            words = knob.words[str(value)]
            given, rest = split_variables(words)
            environment |= given
            command = rest if knob.is_command else _put_words(command, knob, rest)
        elif knob.variable and value == UNSET:
            environment.pop(knob.variable, None)
        elif knob.variable and value != INHERITED:
            environment[knob.variable] = spell(value)
        elif knob.at and not knob.file and not knob.is_placeholder:
            place = find_option(command, knob.at)
            if place is None:
                command = command if value == knob.own_value else _add_option(command, knob.at, spell(value))
            elif knob.read(command[place[0]].removeprefix(place[1])) != value:
                command[place[0]] = f"{place[1]}{spell(value)}"
        elif knob.is_placeholder:
            pattern = re.compile(PLACEHOLDER % knob.name)
            command = [_fill(word, pattern, spell(value)) for word in command]
    samples = workload.samples_per_step
    if isinstance(samples, str):
        own = {knob.name: values.get(knob.name, knob.own_value) for knob in workload.own}
        samples = count_samples(samples, own)
    return workload.model_copy(
        update={"command": tuple(command), "environment": environment, "samples_per_step": samples}
    )


def _fill(word: str, pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: found[0] if found[1] else text, word)


def _add_option(command: list[str], option: str, text: str) -> list[str]:
    """Return the command with an option more: the first of the script's, before words that may be subcommands.

    At the end where the script cannot be told from its launcher.
    """
    launch = Command.read(command).launch
    at = len(command) - (len(launch.arguments) if launch else 0)
    return [
        *command[:at],
        *((option, text) if option.startswith("-") else (f"{option}={text}",)),
        *command[at:],
    ]


def _put_words(command: list[str], knob: OwnKnob, words: Sequence[str]) -> list[str]:
    """Return the command with the words in the place of the word `${name}`, else of their own options, at its end."""
    mark = f"${{{knob.name}}}"
    if mark not in command:
        kept, taken = take_out(command, list_options(knob.words.values()))
        _, own = split_variables(knob.words[str(knob.own_value)])
        if not has_words(taken, own):
            return [*command, *words]
        return command if taken and has_words(taken, words) else [*kept, *words]
    at = command.index(mark)
    return [*command[:at], *words, *command[at + 1 :]]


def list_variables(own: Iterable[OwnKnob], changes: Mapping[str, Value]) -> dict[str, str]:
    """Return the variables that tell a program's ranks its own knobs: each value, and how each is put there."""
    knobs = tuple(own)
    if not knobs:
        return {}
    about = {
        knob.name: {
            "how": say_placed(knob, changes.get(knob.name, knob.own_value)),
            "values": knob.values,
            "hot": knob.hot,
            "exact": knob.effect is Effect.EXACT,
        }
        for knob in knobs
    }
    # What a script asks for has its own value until a strategy changes it.
    told = [knob for knob in knobs if knob.at or knob.words or knob.name in changes]
    values = {knob.name: spell(changes.get(knob.name, knob.own_value)) for knob in told}
    return {
        **{f"ADVISOR_KNOB_{name}": text for name, text in values.items()},
        **{
            knob.variable: values[knob.name]
            for knob in told
            if knob.variable and values[knob.name] not in {UNSET, INHERITED}
        },
        "ADVISOR_OWN": json.dumps(about),
    }


def list_unset(own: Iterable[OwnKnob], changes: Mapping[str, Value]) -> frozenset[str]:
    """Return the variables that are taken out of what a launch inherits."""
    return frozenset(
        knob.variable for knob in own if knob.variable and changes.get(knob.name, knob.own_value) == UNSET
    )


def say_placed(knob: OwnKnob, value: Value) -> str:
    """Return a sentence: which value stands where since the launch; empty where the script has to ask for it."""
    if not knob.at and not knob.words:
        return ""
    return f"{spell(value)} since the launch: {knob.describe_place()}."


def list_file_values(workload: Workload, changes: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Return for each file that own knobs stand in its keys and values, as far as they differ from the baseline's."""
    found: dict[str, dict[str, Value]] = {}
    for knob in workload.own:
        if knob.file and changes.get(knob.name, knob.own_value) != knob.own_value:
            found.setdefault(knob.file[0], {})[knob.file[1]] = changes[knob.name]
    return found


def replace_path(command: Sequence[str], path: str, copy: str) -> tuple[str, ...]:
    """Return the command with another file in the place of `path`, as a word of its own or behind `--option=`."""
    return tuple(
        copy if word == path else f"{word[: -len(path)]}{copy}" if word.endswith(f"={path}") else word
        for word in command
    )
