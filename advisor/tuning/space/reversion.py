"""Taking knobs of a strategy back to the baseline's value, together with those that mean nothing without them."""

from collections.abc import Collection, Mapping

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.space.composition import Composer

Unit = tuple[str, ...]
"""Knobs of a strategy that can only go back together, in the strategy's order."""


def take_back(composer: Composer, changes: Mapping[str, Value], names: Collection[str]) -> Changes | None:
    """Return the changes without these knobs and those that need them; None when that is no sound, smaller part."""
    gone = set(names)
    gone |= {name for name in changes if composer.catalogue.activators.get(name) in gone}
    smaller = composer.compose({name: value for name, value in changes.items() if name not in gone})
    if smaller is None or not smaller.items() < changes.items():
        return None
    return Changes({name: value for name, value in changes.items() if name in smaller})


def list_units(composer: Composer, changes: Mapping[str, Value]) -> list[Unit]:
    """Return the changed knobs in groups that can go back on their own, in the strategy's order.

    A knob that another one forces back in (sync_nccl_allreduce with several communicators) goes with that one; a
    knob that means nothing without its switch goes with the switch. One group of all where nothing can go alone.
    """
    head = {name: name for name in changes}

    def find(name: str) -> str:
        while head[name] != name:
            name = head[name]
        return name

    for name in changes:
        activator = composer.catalogue.activators.get(name)
        if activator in changes and activator is not None:
            head[find(name)] = find(activator)
    for name in changes:
        if _goes(composer, changes, [other for other in changes if find(other) == find(name)]):
            continue
        for partner in changes:
            mine = {find(name), find(partner)}
            if len(mine) == 2 and _goes(composer, changes, [n for n in changes if find(n) in mine]):
                head[find(name)] = find(partner)
                break
    groups: dict[str, list[str]] = {}
    for name in changes:
        groups.setdefault(find(name), []).append(name)
    return [tuple(group) for group in groups.values()]


def _goes(composer: Composer, changes: Mapping[str, Value], names: Collection[str]) -> bool:
    if set(names) == changes.keys():
        return True
    smaller = take_back(composer, changes, names)
    return smaller is not None and not set(names) & smaller.keys()
