"""How people type a knob of their own: `micro=1,2,4,8:exact`, `--batch=1..64:log`, `config.toml:training.batch=1,2`.

NAME=V,V,…[:flag]…      ${NAME} in the command, or fleet_advisor.knob("NAME") in the script
--option=V,V            that option of the command          key.path=V,V   that word of the command
$VARIABLE=V,V           a variable                          FILE:KEY=V,V   a key of a JSON, YAML or TOML file
1..64                   a range: evenly spread, or with :log by doublings
flags                   exact, numeric, convergence; more-is-faster, less-is-faster; hot; log
"""

import json
import math
import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError

from advisor.protocol.expressions import LARGEST
from advisor.protocol.kinds import Effect
from advisor.protocol.training.command_options import name_place
from advisor.protocol.training.own_knobs import Faster, OwnKnob, read_value

_FASTER = {"more-is-faster": Faster.MORE, "less-is-faster": Faster.LESS}
_FLAGS = frozenset({*(effect.value for effect in Effect), *_FASTER, "hot", "log"})
_RANGE = re.compile(r"\s*(?P<low>[^.\s]+(?:\.\d+)?)\.\.(?P<high>\S+)\s*")
_MOST_OF_RANGE = 9
_MOST_DOUBLINGS = 63
_HOW = "write NAME=V,V, such as micro=1,2,4,8:exact"


def read_own_knob(text: str) -> dict[str, Any]:
    """Return the fields of the knob that a text describes; raises ValueError with a sentence."""
    rest, flags = _split_flags(text)
    where, equals, listed = _split_name(rest)
    if not equals or not where or not listed.strip():
        raise ValueError(f"{text!r} names no values: {_HOW}")
    words = [word.strip() for word in listed.split(",")]
    if "" in words:
        raise ValueError(f"{text!r} has an empty value: {_HOW}")
    found = _RANGE.fullmatch(listed)
    values = spread(text, found["low"], found["high"], "log" in flags) if found else _read_words(words)
    effects = [flag for flag in flags if flag in set(Effect)]
    faster = [_FASTER[flag] for flag in flags if flag in _FASTER]
    if len(effects) > 1 or len(faster) > 1:
        raise ValueError(f"{text!r} says two things at once ({', '.join(flags)}): keep one")
    is_name = re.fullmatch(r"[A-Za-z_]\w*", where) is not None
    return {
        "name": where if is_name else name_place(where),
        "at": "" if is_name else where,
        "values": values,
        **({"effect": effects[0]} if effects else {}),
        **({"faster": faster[0]} if faster else {}),
        **({"hot": True} if "hot" in flags else {}),
    }


def _accept_text(given: object) -> object:
    """Take a knob that was typed as one text for its fields, whose lists may have come as JSON's."""
    if isinstance(given, str):
        given = read_own_knob(given)
    if not isinstance(given, dict):
        return given
    try:
        # In JSON's terms, so that a list is a tuple and a word an effect however strictly the job is read.
        return OwnKnob.model_validate_json(json.dumps(given, default=tuple), strict=True)
    except ValidationError as error:
        told = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in error.errors()]
        raise ValueError("; ".join(told).replace("Value error, ", "")) from None


TypedKnob = Annotated[OwnKnob, BeforeValidator(_accept_text)]
"""A knob of a user's own, as its fields or as one text."""


def read_variants(texts: Sequence[str]) -> dict[str, Any]:
    """Return the fields of the knob that chooses among `ddp: --engine ddp` and the like; the first is the baseline.

    A label may say what the choice changes (`fsdp:numeric: --engine fsdp`): the most that any of them says counts.
    """
    words: dict[str, tuple[str, ...]] = {}
    effects: list[Effect] = []
    for text in texts:
        label, colon, rest = f"{text} ".partition(": ")
        name, flags = _split_flags(label)
        if not colon or not re.fullmatch(r"[\w.\-]+", name):
            raise ValueError(f"{text!r} is no variant: write NAME: WORDS, such as 'fsdp: --engine fsdp'")
        if name in words:
            raise ValueError(f"{name} is given twice: give each variant another name")
        words[name] = tuple(shlex.split(rest))
        effects += [Effect(flag) for flag in flags if flag in set(Effect)]
    if len(words) < 2:
        raise ValueError("one variant leaves no choice: give two at least, the first one being today's")
    effect = max(effects, key=lambda one: one.rank) if len(effects) >= len(words) - 1 and effects else None
    return {"name": "variant", "values": tuple(words), "words": words, "effect": effect}


def read_commands(texts: Sequence[str], effect: Effect | None) -> dict[str, Any]:
    """Return the fields of the knob that chooses among whole commands, named A, B, …; the first is the baseline."""
    words = {chr(ord("A") + place): tuple(shlex.split(text)) for place, text in enumerate(texts)}
    return {"name": "command", "at": "command", "values": tuple(words), "words": words, "effect": effect}


def spread(text: str, low: str, high: str, by_doublings: bool) -> tuple[int | float, ...]:
    """Return the values of a range, its ends among them."""
    ends = read_value(low), read_value(high)
    if any(isinstance(end, str | bool) for end in ends) or float(ends[0]) >= float(ends[1]):
        raise ValueError(f"{text!r}: a range goes from a number to a larger one, such as 1..64")
    first, last = float(ends[0]), float(ends[1])
    if max(-first, last) > LARGEST:
        raise ValueError(f"{text!r}: a range goes to {LARGEST:g} at most")
    if by_doublings and first <= 0:
        raise ValueError(f"{text!r}: a range by doublings (:log) begins above 0")
    if by_doublings:
        count = max(1, math.ceil(math.log2(last) - math.log2(first)))
        if count > _MOST_DOUBLINGS:
            raise ValueError(f"{text!r}: a range by doublings (:log) has {_MOST_DOUBLINGS} of them at most")
        found = [min(last, first * 2.0**step) for step in range(count + 1)]
    else:
        is_small = all(isinstance(end, int) for end in ends) and last - first < _MOST_OF_RANGE
        count = int(last - first) if is_small else _MOST_OF_RANGE - 1
        found = [first + (last - first) * step / count for step in range(count + 1)]
    if all(isinstance(end, int) for end in ends):
        return tuple(dict.fromkeys(round(value) for value in found))
    return tuple(dict.fromkeys(float(f"{value:.6g}") for value in found))


def _read_words(words: Sequence[str]) -> tuple[Any, ...]:
    values = [read_value(word) for word in words]
    return tuple(words) if any(isinstance(value, str) for value in values) else tuple(values)


def _split_flags(text: str) -> tuple[str, list[str]]:
    flags: list[str] = []
    while (cut := text.rfind(":")) >= 0 and text[cut + 1 :].strip() in _FLAGS:
        flags.insert(0, text[cut + 1 :].strip())
        text = text[:cut]
    return text, flags


def _split_name(text: str) -> tuple[str, str, str]:
    """Part a text at the first `=` behind the name, which may begin with dashes."""
    where, equals, listed = text.partition("=")
    return where.strip(), equals, listed
