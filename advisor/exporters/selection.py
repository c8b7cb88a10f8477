"""Which knobs an export speaks about: those that were timed, with the companions they make no sense without."""

from collections.abc import Mapping

from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob


def is_timed(advice: Advice, knob: str) -> bool:
    """Whether blocks were timed with this knob varied, so that its value is more than a default."""
    return knob in advice.changes or advice.provenance.get(knob, Provenance.CARRIED) is not Provenance.CARRIED


def select_knobs(advice: Advice) -> tuple[str, ...]:
    """Return the timed knobs and the members of their groups, in the catalogue's order."""
    meant = {_group_of(knob) for knob in advice.catalogue.values() if is_timed(advice, knob.name)}
    return tuple(knob.name for knob in advice.catalogue.values() if _group_of(knob) in meant)


def _group_of(knob: Knob) -> str:
    """The switch that was in force with a knob when it was timed; its own name where there is none."""
    return knob.needs or knob.timed_with or knob.name


def idle_because(knob: str, values: Mapping[str, Value]) -> str | None:
    """Return a sentence when another knob's value makes `knob` idle in a strategy, else None."""
    return CATALOGUE[knob].inactive_because(values) if knob in CATALOGUE else None


def typed_values(advice: Advice) -> dict[str, Value]:
    """Return the advised value of every knob in the knob's own type; JSON turns 32.0 into 32 on its way.

    Ranges are not judged: a script may stand outside the range that a search would try.
    """
    return {
        name: knob.kind(advice.strategy.get(name, knob.default)) for name, knob in advice.catalogue.items()
    }
