"""Rules of thumb -> the first strategies to try. What is tried first matters more than the sampler."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.knob import Rule
from advisor.protocol.knobs.strategy import UPDATE_RULES
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.space.composition import join_names
from advisor.tuning.space.space import Dimension, Space

_MOST = 12
"""First strategies at most: the sampler knows more after them than the rules do."""
_PARTNERS = ("fuse_grad_size_in_MB",)
"""Knobs whose best rule is also tried together with each other knob's."""


@dataclass(frozen=True)
class Prior:
    """A strategy worth trying before any is measured, and why."""

    changes: Changes
    because: str


def first_strategies(space: Space) -> tuple[Prior, ...]:
    """Return the rules of thumb alone and in sensible combinations, best first, without duplicates.

    Together first: rules of thumb seldom hurt each other, and a small budget should see them all.
    """
    return _compose(space, _wishes(space))[:_MOST]


def rules_together(space: Space) -> tuple[Prior, ...]:
    """Return all rules of thumb at once, from the highest allowed rung down, each rung's with and without those below.

    What the highest rung permits promises most; without the harmless ones, because one of those may take it back.
    """
    return _compose(space, _wishes_together(space))


def computed_strategies(space: Space) -> tuple[Prior, ...]:
    """Return what was computed from the probe's measurements, each alone, beside what it replaces."""
    computed = [d for d in space.dimensions if d.knob.name in space.context.computed]
    return _compose(
        space, (({d.knob.name: r.value}, r.because) for d in computed for r in rules_of(d, space))
    )


def _compose(space: Space, wished: Iterable[tuple[dict[str, Value], str]]) -> tuple[Prior, ...]:
    priors: list[Prior] = []
    seen: set[object] = set()
    for wishes, because in wished:
        changes = space.composer.compose(wishes)
        if changes is not None and changes not in seen:
            seen.add(changes)
            priors.append(Prior(changes=changes, because=because))
    return tuple(priors)


def _wishes(space: Space) -> Iterator[tuple[dict[str, Value], str]]:
    yield from _wishes_together(space)
    best = _best_rules(space)
    dimensions = [d for d in space.dimensions if d.knob.place is not Place.OWN]
    for dimension in sorted(dimensions, key=lambda d: not _acts_on_most_of_a_step(d, space)):
        for rule in rules_of(dimension, space)[:1]:
            yield _alone(dimension.knob.name, rule, space), rule.because
    for partner in _PARTNERS:
        for name, rule in best.items():
            if partner in best and name != partner and not _is_new_update_rule(name):
                both = {**_alone(partner, best[partner], space), **_alone(name, rule, space)}
                yield both, f"{rule.because} {best[partner].because}"
    for dimension in dimensions:
        for rule in rules_of(dimension, space)[1:]:
            yield _alone(dimension.knob.name, rule, space), rule.because
    for dimension in dimensions:
        if dimension.knob.kind is bool and dimension.knob.name not in best:
            name = dimension.knob.name
            yield {name: not space.context.baseline[name]}, f"{name} the other way round from the baseline."


def _best_rules(space: Space) -> dict[str, Rule]:
    of_fleet = [d for d in space.dimensions if d.knob.place is not Place.OWN]
    return {d.knob.name: rules[0] for d in of_fleet if (rules := rules_of(d, space))}


def _wishes_together(space: Space) -> Iterator[tuple[dict[str, Value], str]]:
    in_vain = space.composer.in_vain
    best = {
        name: rule for name, rule in _best_rules(space).items() if Changes({name: rule.value}) not in in_vain
    }
    for effect in reversed(Effect):
        group = [
            name
            for name in best
            if _effect(space, name).rank <= effect.rank and not _is_new_update_rule(name)
        ]
        if len(group) > 1:
            yield {name: best[name].value for name in group}, f"Rules of thumb together: {join_names(group)}."
        rung = [name for name in best if _effect(space, name) is effect]
        if rung and effect is not Effect.EXACT:
            own = [name for name in rung if name in group] or rung[:1]
            wishes = {key: value for name in own for key, value in _alone(name, best[name], space).items()}
            yield wishes, " ".join(best[name].because for name in own)


def rules_of(dimension: Dimension, space: Space) -> tuple[Rule, ...]:
    """Return the knob's rules of thumb, best first; what the script does already is no rule to try.

    Where the job names the values to try, the nearest of them stands for a rule's own.
    """
    as_it_is = space.context.baseline.get(dimension.knob.name)
    rules: dict[Value, Rule] = {}
    for rule in dimension.knob.rule(space.context):
        if rule.value not in dimension.values and not dimension.ordered:
            continue
        value = dimension.values[dimension.index_of(rule.value)]
        if value != as_it_is and value not in rules:
            rules[value] = Rule(value, rule.because)
    return tuple(rules.values())


def keep_searched(space: Space, changes: Mapping[str, Value]) -> dict[str, Value]:
    """Return the changes to knobs that the search varies, each at the nearest value that it tries."""
    kept: dict[str, Value] = {}
    for dimension in (*space.dimensions, *space.costly):
        if dimension.knob.name in changes:
            kept[dimension.knob.name] = dimension.values[dimension.index_of(changes[dimension.knob.name])]
    return kept


def _alone(name: str, rule: Rule, space: Space) -> dict[str, Value]:
    wishes: dict[str, Value] = {name: rule.value}
    if name in space.composer.catalogue.activators:
        wishes[space.composer.catalogue.activators[name]] = True
    return wishes


def _acts_on_most_of_a_step(dimension: Dimension, space: Space) -> bool:
    """Threads act on all of a CPU's computation, the communication knobs on what is exposed of it.

    Knobs of data reading are in the space only where training was seen to wait for it.
    """
    if dimension.knob.part is Part.INPUT:
        return True
    return dimension.knob.name == "num_threads" and space.context.facts.device is DeviceKind.CPU


def _effect(space: Space, name: str) -> Effect:
    return next(d.knob.effect for d in space.dimensions if d.knob.name == name)


def _is_new_update_rule(name: str) -> bool:
    """Such a rule replaces the reduction of every step, so it is not mixed with the knobs that act on it."""
    return name.startswith(UPDATE_RULES)
