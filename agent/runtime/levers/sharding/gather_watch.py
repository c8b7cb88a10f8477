"""How far ahead of its use a sharded model's parameters are gathered, seen in one forward and backward."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from ... import private_torch
from ...observe.sharded import list_groups, list_parts

FORWARD, BACKWARD = "forward", "backward"


class GatherWatch:
    """Every module asks for its parameters before it computes: those that are under way by then were gathered ahead."""

    def __init__(self, root: Any) -> None:
        self.phase = FORWARD
        self.gathers = {FORWARD: 0, BACKWARD: 0}
        self.most_ahead = {FORWARD: 0, BACKWARD: 0}
        """Most modules whose parameters were under way when one of them asked for its own."""
        self._parts: List[List[Any]] = [
            [group for group in list_groups(module) if group is not None]
            for module in list_parts(root).values()
        ]

    def start(self) -> None:
        for group in self._list_groups():
            group.unshard = self._watch(group, group.unshard)

    def stop(self) -> None:
        for group in self._list_groups():
            # The class's own method shows again.
            vars(group).pop("unshard", None)

    def _list_groups(self) -> List[Any]:
        return [group for groups in self._parts for group in groups]

    def _watch(self, group: Any, unshard: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            was_under_way = _is_under_way(group)
            if was_under_way:
                ahead = sum(any(map(_is_under_way, groups)) for groups in self._parts)
                self.most_ahead[self.phase] = max(self.most_ahead[self.phase], ahead)
            found = unshard(*args, **kwargs)
            self.gathers[self.phase] += not was_under_way and _is_under_way(group)
            return found

        return watched


def _is_under_way(group: Any) -> bool:
    return private_torch.GATHERED.of(group) is not None


def read_forward_order(root: Any) -> List[Any]:
    """The sharded modules inside this one as its last forward ended them, each as often; asked before its backward.

    Empty where nothing was gathered in it.
    """
    parts = list_parts(root)
    owners: Dict[int, Any] = {id(group): module for module in parts.values() for group in list_groups(module)}
    groups = [group for module in parts.values() for group in list_groups(module) if group is not None]
    if not groups:
        return []
    ended = private_torch.FORWARD_ORDER.of(private_torch.GATHER_CONTEXT.of(groups[0]))
    found = (owners.get(id(group)) for group in ended)
    return [module for module in found if module is not None and module is not root]


def order_by_beginning(ended: List[Any]) -> List[Any]:
    """Modules in the order in which a forward first begins them, from the order in which it ends them.

    A module begins before whatever is inside it, and ends after it.
    """
    places = {module: place for place, module in enumerate(dict.fromkeys(ended))}

    def begins(module: Any) -> Any:
        return min(places[part] for part in module.modules() if part in places), -places[module]

    return sorted(places, key=begins)


def order_for_backward(ended: List[Any]) -> List[Any]:
    """Modules in the order in which a backward first comes to them."""
    return list(dict.fromkeys(reversed(ended)))
