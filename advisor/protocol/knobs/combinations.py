"""The combinations of a job's own knobs: refused where only today's is left, told where a budget is far too small."""

import itertools
import math
from collections.abc import Iterator, Sequence

from advisor.protocol.base import Value
from advisor.protocol.expressions import holds, list_names
from advisor.protocol.knobs.reach import list_constants
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.workload import Workload

_MOST_LOOKED_AT = 20_000
"""Combinations that are looked at, a few µs each; of more nothing is told for certain."""
_USUAL_S = 15.0
"""Seconds of a launch and its race, before any was seen."""
_OTHER_LAUNCHES = 6
"""Launches of a budget beside those of combinations: the probe's, the verdict's, and one that takes longer."""
_TOO_MANY = 3
"""Times more combinations than a budget holds from which on it is told before anything starts."""


def refuse_only_todays(workload: Workload) -> None:
    """Raise ValueError where own knobs have no other value than today's, or requirements leave none."""
    required = {name for text in workload.require for name in list_names(text)}
    for knob in workload.own:
        # One value that a requirement names is a fact that the command has to tell.
        is_told = (knob.at or knob.words) and knob.name not in required
        if is_told and set(knob.values) == {knob.own_value}:
            raise ValueError(
                f"{knob.name} is {knob.own_value} today, and no other value is named: name at least one"
            )
    texts = _list_of_own(workload)
    names = {name for text in texts for name in list_names(text)}
    tied = [knob for knob in workload.own if knob.name in names]
    if not tied or math.prod(len(_list_values(knob)) for knob in tied) > _MOST_LOOKED_AT:
        return
    if next(_combine(tied, texts, workload), None) is None:
        today = ", ".join(f"{knob.name} {knob.own_value}" for knob in tied)
        raise ValueError(
            f"require {' and '.join(map(repr, texts))}: of the values named only today's fulfil it ({today}): name "
            "others, or correct it"
        )


def say_too_many(workload: Workload, seconds: float, trials: int, frozen: Sequence[str] = ()) -> str:
    """Return what a budget holds of far more combinations, and what to name instead; empty where it holds enough."""
    varied = [knob for knob in workload.own if not knob.hot and knob.name not in frozen]
    knobs = [knob for knob in varied if len(_list_values(knob)) > 1]
    if not knobs:
        return ""
    looked = itertools.islice(_combine(knobs, _list_of_own(workload), workload), _MOST_LOOKED_AT)
    count = sum(1 for _ in looked)
    fit = max(1, min(trials, int(seconds / _USUAL_S) - _OTHER_LAUNCHES))
    if count <= _TOO_MANY * fit:
        return ""
    each = max(2, int((fit + 1) ** (1.0 / len(knobs))))
    minutes = math.ceil((count + _OTHER_LAUNCHES) * _USUAL_S / 60)
    more = "more than " if count == _MOST_LOOKED_AT else ""
    return (
        f"You name {more}{count} combinations of {', '.join(knob.name for knob in knobs)}, a launch each, and "
        f"{seconds / 60:.3g} minutes with {trials} trials hold about {fit}: so many are measured, spread over all "
        f"values. Name {each} or so of each, such as its ends, or give the job --minutes {minutes} --trials {count}."
    )


def _list_of_own(workload: Workload) -> list[str]:
    """The requirements over own knobs and the command's options: what else they name is known once the script runs."""
    names = {knob.name for knob in workload.own} | list_constants(workload).keys()
    return [text for text in workload.require if set(list_names(text)) <= names]


def _list_values(knob: OwnKnob) -> tuple[Value, ...]:
    return tuple(dict.fromkeys((knob.own_value, *knob.values)))


def _combine(
    knobs: Sequence[OwnKnob], texts: Sequence[str], workload: Workload
) -> Iterator[dict[str, Value]]:
    """Yield the combinations but today's that fulfil all texts, of as many as are looked at; other knobs stay."""
    names = [knob.name for knob in knobs]
    others = {**list_constants(workload), **{knob.name: knob.own_value for knob in workload.own}}
    points = itertools.product(*map(_list_values, knobs))
    for point in itertools.islice(points, 1, _MOST_LOOKED_AT + 2):
        values = dict(zip(names, point, strict=True))
        if all(holds(text, {**others, **values}) for text in texts):
            yield values
