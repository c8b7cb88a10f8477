"""The catalogue's entries: the knobs of PaddlePaddle Fleet's DistributedStrategy and its surroundings.

Defaults and rules of thumb are those of the Fleet documents. `docs/knobs.md` is generated from this file. A job's own
knobs stand beside them in the catalogue of that job (`join_own`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Place, Scale, Switch
from advisor.protocol.knobs.carried import CARRIED
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.communication import COMMUNICATION
from advisor.protocol.knobs.compute import COMPUTE
from advisor.protocol.knobs.environment import ENVIRONMENT
from advisor.protocol.knobs.knob import Knob, Rule
from advisor.protocol.knobs.loading import LOADING
from advisor.protocol.knobs.sharding import SHARDING
from advisor.protocol.knobs.training import TRAINING
from advisor.protocol.near_names import MOST_NEAR, find_nearest
from advisor.protocol.training.own_knobs import Faster, OwnKnob

_COMMON = frozenset({"mb", "size", "in", "of", "num", "use", "the", "to", "speed", "cap"})
"""Words that stand in too many places to mean a knob by themselves; beside another one they count half."""


class Catalogue(dict[str, Knob]):
    """The knobs that a job knows, by name: Fleet's, and its own beside them. Never changed after it was made."""

    def __init__(self, knobs: Iterable[Knob]) -> None:
        super().__init__({knob.name: knob for knob in knobs})

    __hash__ = object.__hash__  # type: ignore[assignment]

    def effect_of(self, changes: Iterable[str]) -> Effect:
        """Return the highest effect among the changed knobs: a strategy's rung."""
        return max(
            (self[name].effect for name in changes), key=lambda effect: effect.rank, default=Effect.EXACT
        )

    def keep_cold(self, changes: Mapping[str, Value]) -> Changes:
        """Return the part of the changes that needs new processes."""
        return Changes({name: value for name, value in changes.items() if self[name].switch is Switch.COLD})

    def list_variables(self, changes: Mapping[str, Value]) -> dict[str, str]:
        """Return the environment variables that carry the changes into the ranks, as far as variables do."""
        variables = {}
        for name, value in changes.items():
            variable = self[name].launch_variable if name in self else None
            if variable is not None:
                variables[variable] = str(int(value)) if isinstance(value, bool) else str(value)
        return variables

    @cached_property
    def activators(self) -> Mapping[str, str]:
        """Knobs that mean nothing unless another one is on, with that one."""
        return {name: knob.needs for name, knob in self.items() if knob.needs}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each knob in the order in which changes are listed."""
        return {name: place for place, name in enumerate(self)}

    def parse(self, changes: Mapping[str, Value]) -> Changes:
        """Return the changes in the knobs' own types; raises ValueError with a sentence that names the first fault."""
        if unknown := [name for name in changes if name not in self]:
            raise ValueError(self.say_unknown(unknown))
        return Changes({name: self[name].parse(value) for name, value in changes.items()})

    def find_nearest(self, name: str) -> tuple[str, ...]:
        """Return the knobs that an unknown name may mean: `bucket_size` is fuse_grad_size_in_MB."""
        typed = _split(name)
        scores = {
            knob.name: sum(0.5 if word in _COMMON else 1.0 for word in typed & _split(_describe(knob)))
            for knob in self.values()
            if not knob.carried
        }
        most = max(1.0, *scores.values())
        by_words = [knob for knob, score in scores.items() if score == most]
        near = (*find_nearest(name, self), *(by_words if len(by_words) <= MOST_NEAR else by_words[:1]))
        return tuple(dict.fromkeys(near))[:MOST_NEAR]

    def say_unknown(self, names: Iterable[str]) -> str:
        """`bucket_size: no such knob (did you mean fuse_grad_size_in_MB?); docs/knobs.md lists them`."""
        told = [f"{name}: no such knob{_ask(self.find_nearest(name))}" for name in names]
        return f"{', '.join(told)}; `advisor knobs` lists them"

    def spell_name(self, name: str, software: Mapping[str, str]) -> str:
        """Return what users of the training's framework call a knob: PyTorch's word, or the name itself."""
        title = self[name].title if name in self and "torch" in software else ""
        return title or name


CATALOGUE = Catalogue((*COMMUNICATION, *TRAINING, *COMPUTE, *ENVIRONMENT, *LOADING, *SHARDING, *CARRIED))
"""Fleet's knobs and those beside them: what every job has."""


def join_own(own: Iterable[OwnKnob]) -> Catalogue:
    """Return the catalogue of a workload with these knobs of its own."""
    knobs = [describe_own(knob) for knob in own]
    return Catalogue((*CATALOGUE.values(), *knobs)) if knobs else CATALOGUE


def describe_own(own: OwnKnob) -> Knob:
    """Return a knob of a user's own as the catalogue describes knobs."""
    values = tuple(dict.fromkeys((*own.values, own.own_value)))
    is_word = isinstance(own.own_value, str)
    if not is_word:
        is_whole = all(isinstance(value, int) for value in values)
        values = tuple(sorted((value if is_whole else float(value) for value in values), key=float))
    numbers = () if is_word else tuple(map(float, values))
    return Knob(
        name=own.name,
        place=Place.OWN,
        default=own.own_value if is_word or isinstance(values[0], int) else float(own.own_value),
        meaning=f"Your own: {own.describe_place()}.",
        effect=Effect.CONVERGENCE if own.effect is None else own.effect,
        switch=Switch.HOT if own.hot else Switch.COLD,
        realised=f"Put there as the job says: {own.describe_place()}.",
        low=min(numbers, default=None),
        high=max(numbers, default=None),
        choices=tuple(map(str, values)) if is_word else (),
        scale=Scale.LOG if numbers and min(numbers) > 0 else Scale.LINEAR,
        grid=lambda _: values,
        own_values=values,
        rule=lambda _: _list_ends(own, values),
    )


def _list_ends(own: OwnKnob, values: Sequence[Value]) -> tuple[Rule, ...]:
    """What to try of an own knob before anything is known: the end that its owner expects to be faster, or each one."""
    if own.faster is Faster.MORE:
        return (Rule(values[-1], f"You expect more of {own.name} to be faster."),)
    if own.faster is Faster.LESS:
        return (Rule(values[0], f"You expect less of {own.name} to be faster."),)
    if isinstance(own.own_value, str):
        return tuple(Rule(value, f"You named {value} as a choice.") for value in values)
    return (
        Rule(values[-1], f"The largest {own.name} that you named."),
        Rule(values[0], f"The smallest {own.name} that you named."),
    )


def _describe(knob: Knob) -> str:
    return f"{knob.name} {knob.meaning} {knob.realised}"


def _ask(near: tuple[str, ...]) -> str:
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _split(text: str) -> set[str]:
    words = re.findall(r"[a-z]+|\d+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).casefold())
    return {word.removesuffix("s") for word in words}
