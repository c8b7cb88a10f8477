"""Any study's distributions as a space of ours: knobs of Fleet's names with their rules, others by themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Place, Switch
from advisor.protocol.knobs.catalogue import CATALOGUE, Catalogue
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.knob import Knob, KnobContext
from advisor.protocol.knobs.strategy import Layout, collective_defaults
from advisor.protocol.nodes.cluster import Cluster, DeviceKind
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.space.composition import Composer
from advisor.tuning.space.space import Dimension, Space

_MOST_VALUES = 17
"""Values of one range that are told apart at most."""
_UNKNOWN = WorkloadFacts(
    backend="", device=DeviceKind.CUDA, world_size=8, local_world_size=8, gradient_bytes=0, parameter_tensors=0,
    layers=0, batch_size_per_rank=0.0,
)  # fmt: skip
"""A training of which nothing was told: one node of eight ranks."""


@dataclass(frozen=True)
class NamedSpace:
    """A space, and how its values are spelt in the study."""

    space: Space
    distributions: Mapping[str, BaseDistribution]
    spelt: Mapping[str, tuple[Any, ...]]
    """The study's values of each parameter, one for each value of the knob."""
    reference: dict[str, Any]
    """The parameters that every other trial is held against."""

    def read(self, params: Mapping[str, Any]) -> Changes:
        """Return a trial's changes against the reference, each at the nearest value that is told apart."""
        changes = {}
        for dimension in self.space.dimensions:
            name = dimension.knob.name
            place = _find_place(self.spelt[name], params[name])
            if place != _find_place(self.spelt[name], self.reference[name]):
                changes[name] = dimension.values[place]
        return Changes(changes)

    def describe(self, changes: Mapping[str, Value]) -> str:
        """`lr 0.01, batch 8`, as the study has them."""
        params = self.spell(changes)
        return ", ".join(f"{name} {params[name]}" for name in changes)

    def spell(self, changes: Mapping[str, Value]) -> dict[str, Any]:
        """Return a strategy's parameters."""
        params = dict(self.reference)
        for dimension in self.space.dimensions:
            name = dimension.knob.name
            if name in changes:
                params[name] = self.spelt[name][dimension.index_of(changes[name])]
        return params


def name_space(
    distributions: Mapping[str, BaseDistribution],
    trials: Sequence[FrozenTrial],
    facts: WorkloadFacts | None = None,
    cluster: Cluster | None = None,
) -> NamedSpace:
    """Return the space of a study's distributions; its reference is the first complete trial, once there is one."""
    first = next((t for t in trials if t.state is TrialState.COMPLETE), None)
    known = facts or _UNKNOWN
    dimensions, spelt, reference = [], {}, {}
    own: dict[str, Value] = dict(collective_defaults().values())
    for name, distribution in distributions.items():
        given = None if first is None or name not in first.params else first.params[name]
        values = _list_values(distribution, given, CATALOGUE.get(name))
        reference[name] = _choose_reference(values, CATALOGUE.get(name)) if given is None else given
        dimension = _make_dimension(name, distribution, values)
        dimensions.append(dimension)
        spelt[name] = values
        own[name] = dimension.values[_find_place(values, reference[name])]
    catalogue = Catalogue({**CATALOGUE, **{d.knob.name: d.knob for d in dimensions}}.values())
    space = Space(
        context=KnobContext(known, cluster or Cluster(), own, catalogue),
        composer=Composer(
            catalogue, own, Layout(world_size=known.world_size, nodes=known.nodes), known.local_world_size,
            frozenset(), frozenset(distributions),
        ),
        dimensions=tuple(dimensions), costly=(), higher=(), dropped=(),
    )  # fmt: skip
    return NamedSpace(space, dict(distributions), spelt, reference)


def _make_dimension(name: str, distribution: BaseDistribution, values: Sequence[Any]) -> Dimension:
    """A knob of Fleet's where the name is one and takes every value; else one that has an order, or none."""
    knob = CATALOGUE.get(name)
    if knob is not None and not knob.carried:
        try:
            proper = tuple(knob.parse(value) for value in values)
        except ValueError:
            proper = ()
        if proper and len(set(proper)) == len(values):
            return Dimension(knob, proper, knob.kind in (int, float))
    ordered = len(values) > 1 and all(type(value) in (int, float) for value in values)
    # Numbers stand as powers of two, so that what is a step in the study is a step by the logarithm, which knobs go by.
    labels: tuple[Value, ...] = (
        tuple(2**place for place in range(len(values))) if ordered
        else tuple(f"{place}: {value!r}" for place, value in enumerate(values))
    )  # fmt: skip
    choices = () if ordered else tuple(str(label) for label in labels)
    own = Knob(
        name, Place.OWN, labels[0], f"A parameter of the study, {distribution}.", Effect.EXACT, Switch.HOT, "",
        choices=choices, own_values=labels,
    )  # fmt: skip
    return Dimension(own, labels, ordered)


def _list_values(distribution: BaseDistribution, given: Any, knob: Knob | None) -> tuple[Any, ...]:
    """The values that are told apart, in order: all of a small range, of a large one so many at equal steps."""
    if isinstance(distribution, CategoricalDistribution):
        choices = distribution.choices
        return tuple(sorted(choices)) if all(type(c) in (int, float) for c in choices) else tuple(choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)  # Optuna has no fourth kind
    low, high, step = distribution.low, distribution.high, distribution.step
    count = int((high - low) / step + 1e-9) + 1 if step and not distribution.log else 0
    if isinstance(distribution, IntDistribution) and distribution.log:
        count = int(high - low) + 1
        step = 1
    if 0 < count <= _MOST_VALUES:
        values = {low + place * step for place in range(count)}
    else:
        shares = [place / (_MOST_VALUES - 1) for place in range(_MOST_VALUES)]
        at = [low * (high / low) ** s if distribution.log else low + (high - low) * s for s in shares]
        if step:
            at = [low + round((value - low) / step) * step for value in at]
        values = {min(max(value, low), high) for value in at}
    whole = isinstance(distribution, IntDistribution)
    anchors = {given} if given is not None else {knob.default} if knob is not None else set()
    values |= {
        a
        for a in anchors
        if isinstance(a, int | float)
        and not isinstance(a, bool)
        and low <= a <= high
        and _is_on_grid(a, low, step)
    }
    return tuple(sorted({int(value) if whole else float(value) for value in values}))


def _is_on_grid(value: float, low: float, step: float | None) -> bool:
    return not step or abs((value - low) / step - round((value - low) / step)) < 1e-9


def _choose_reference(values: Sequence[Any], knob: Knob | None) -> Any:
    if knob is not None and knob.default in values:
        return values[values.index(knob.default)]
    return values[len(values) // 2] if all(type(value) in (int, float) for value in values) else values[0]


def _find_place(values: Sequence[Any], wanted: Any) -> int:
    """The place of a value, or of the nearest one."""
    for place, value in enumerate(values):
        if value == wanted and type(value) is type(wanted):
            return place
    if wanted in values or not isinstance(wanted, int | float):
        return list(values).index(wanted) if wanted in values else 0
    return min(range(len(values)), key=lambda place: abs(float(values[place]) - wanted))
