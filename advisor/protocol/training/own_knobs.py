"""A user's own knobs: options of the script, variables, keys of its files, or whole commands, and where they stand.

Each has values that its owner names. What puts them where the program reads them is in `settling`.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from advisor.protocol.base import Spec, Value
from advisor.protocol.kinds import Effect
from advisor.protocol.training.command_options import find_option, has_words, list_options, take_out

MOST_VALUES = 64
UNSET, INHERITED = "unset", "inherited"
"""Words for a variable's value: taken out of what a launch inherits, and left as it is."""
PLACEHOLDER = r"\$(\$?)\{%s(?::-([^}]*))?\}"
_FILE = re.compile(r"(?P<path>.+\.(?:json|ya?ml|toml)):(?P<key>[\w.\-]+)")


class Faster(StrEnum):
    """Which end of a number its owner expects to train faster."""

    UNKNOWN = ""
    MORE = "more"
    LESS = "less"


MOST_OF_WORDS = 50_000
"""Characters of a knob's words: a list of jobs shows all of them."""


class OwnKnob(Spec):
    """Something of the user's own that may vary between launches."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=60)
    """What strategies call it."""
    values: tuple[Value, ...] = Field(min_length=1, max_length=MOST_VALUES)
    """What may be tried; the baseline's value always counts. All numbers, or all words."""
    at: str = Field(default="", max_length=500)
    """Where the program reads it. Empty: `${name}` in the command, an option `--name` or word `name=` of it, else
    `fleet_advisor.knob("name")` in the script. `--batch`: that option of the command. `$OMP_X`: a variable.
    `config.toml:training.batch`: a key of a file that the command names. `command`: the values stand for whole
    commands, whose `words` are given."""
    baseline: Value | None = None
    """The value of the script as it stands. None: what the command says today, or the script where it asks, else the
    first of `values`. Of an option that the command does not have: what the script takes then. Strategies with another
    value add the option."""
    effect: Effect | None = None
    """What another value may change besides the speed. None: nothing is known, so it counts as convergence."""
    faster: Faster = Faster.UNKNOWN
    """Which end is expected to train faster, where its owner knows."""
    hot: bool = False
    """The script asks `fleet_advisor.knob` in every step, so that it can change between two steps."""
    words: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """For a choice between groups of words (a variant): the words that stand for each value. `NAME=value` words before
    the others are variables. Where the command has the options of one group, that one is today's, and another takes
    their place."""

    @model_validator(mode="after")
    def _refuse_what_makes_no_sense(self) -> Self:
        if any(isinstance(value, bool) for value in self._all_values()):
            raise ValueError(
                f'{self.name}: write true and false as words ("true", "false"), as your program reads them'
            )
        if len({isinstance(value, str) for value in self._all_values()}) > 1:
            raise ValueError(f"{self.name} mixes numbers and words: give all its values as one of them")
        if self.words and set(self.words) != {str(value) for value in self.values}:
            raise ValueError(f"{self.name}: words has to name the words of each of its values, and no others")
        if sum(len(word) for words in self.words.values() for word in words) > MOST_OF_WORDS:
            raise ValueError(f"{self.name}: all its words together have at most {MOST_OF_WORDS} characters")
        if self.hot and self.at:
            raise ValueError(
                f"{self.name} is read at {self.at}, when the program starts, so that it cannot be hot"
            )
        return self

    def _all_values(self) -> tuple[Value, ...]:
        return self.values if self.baseline is None else (*self.values, self.baseline)

    @property
    def own_value(self) -> Value:
        """The baseline's value."""
        return self.values[0] if self.baseline is None else self.baseline

    @property
    def file(self) -> tuple[str, str] | None:
        """Path and key, where it stands in a file."""
        found = _FILE.fullmatch(self.at)
        return (found["path"], found["key"]) if found else None

    @property
    def variable(self) -> str:
        """The variable that it stands in; empty where it stands elsewhere."""
        return self.at[1:] if self.at.startswith("$") and not self.is_placeholder else ""

    @property
    def is_placeholder(self) -> bool:
        """Whether it stands in the command as `${name}`."""
        return self.at == f"${{{self.name}}}"

    @property
    def is_command(self) -> bool:
        """Whether its values are whole commands."""
        return self.at == "command"

    def describe_place(self) -> str:
        """Return a clause: where the program reads it."""
        if self.is_command:
            return "the whole command"
        if self.words:
            return "words of the command"
        if self.file:
            return f"{self.file[1]} in {self.file[0]}"
        if self.at:
            return f"{self.variable} in the environment" if self.variable else f"{self.at} in the command"
        return f'fleet_advisor.knob("{self.name}") in the script'

    def stands_in(self, command: Sequence[str]) -> bool:
        """Whether the command holds `${name}`."""
        pattern = re.compile(PLACEHOLDER % self.name)
        return any(not found[1] for word in command for found in pattern.finditer(word))

    def read(self, typed: str) -> Value:
        """Return a text as a value of this knob; the text itself where that is no number and numbers are expected."""
        return typed if isinstance(self.values[0], str) else read_value(typed)


def read_value(typed: str) -> Value:
    """`4` and `1e-3` as numbers, everything else as the word that it is."""
    try:
        number = float(typed)
    except ValueError:
        return typed
    if number != number or number in (float("inf"), float("-inf")):
        return typed
    return int(number) if re.fullmatch(r"[+-]?\d+", typed.strip()) else number


def spell(value: Value) -> str:
    """Return a value as programs read it: whole numbers without a point."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return str(value)


def find_place(knob: OwnKnob, command: Sequence[str]) -> str:
    """Return where a knob stands of which only the name was given: `${name}`, else an option or word of that name.

    Empty where the command holds none of them: then the script asks for it.
    """
    if knob.at or knob.words or knob.hot:
        return knob.at
    if knob.stands_in(command):
        return f"${{{knob.name}}}"
    names = (f"--{knob.name}", f"--{knob.name.replace('_', '-')}", knob.name)
    return next((name for name in names if find_option(command, name) is not None), "")


def find_baseline(knob: OwnKnob, command: Sequence[str], environment: Mapping[str, str]) -> Value | None:
    """Return the value that the workload has today; None where that cannot be told without its files.

    Raises ValueError where the command does not hold the option, and nothing says what the script takes then.
    """
    if knob.is_command or knob.file:
        return None
    if knob.words:
        _, taken = take_out(command, list_options(knob.words.values()))
        return next((v for v in knob.values if taken and has_words(taken, knob.words[str(v)])), None)
    if knob.variable:
        typed = environment.get(knob.variable)
        return None if typed is None else knob.read(typed)
    if not knob.at or knob.is_placeholder:
        pattern = re.compile(PLACEHOLDER % knob.name)
        found = (match[2] for word in command for match in pattern.finditer(word) if not match[1])
        default = next((text for text in found if text is not None), None)
        return None if default is None else knob.read(default)
    place = find_option(command, knob.at)
    if place is None and knob.baseline is not None:
        return None
    if place is None:
        raise ValueError(
            f"the command has no option {knob.at}: add it with today's value, or write ${{{knob.name}}} where it "
            f"belongs, and call the knob {knob.name}"
        )
    return knob.read(command[place[0]].removeprefix(place[1]))
