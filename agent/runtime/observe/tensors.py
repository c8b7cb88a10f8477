"""Finds tensors in what the script gives a model, gets from it or reads, without asking any object of the script's.

A class of the script's may count how often it is iterated, load what it is asked for, raise, or hold itself: only what
Python's own containers store is looked at, each once.
"""

from __future__ import annotations

import contextlib
import types
from collections import UserDict
from typing import Any, ContextManager, Dict, Iterator, List, Set, cast

import torch

from ..private_torch import PAST_OVERRIDES

MOST = 4096
"""Objects that are looked at: a batch may hold lists of a million numbers."""
_FIELDS = "__dataclass_fields__"
_MISSING = object()


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """In reading order, in the usual containers and dataclasses."""
    left: List[Any] = [value]
    seen: Set[int] = set()
    for _ in range(MOST):
        if not left:
            return
        found = left.pop()
        if issubclass(type(found), torch.Tensor):
            yield found
        elif id(found) not in seen:
            seen.add(id(found))
            left += reversed(_list_held(found))


def read_shape(tensor: torch.Tensor) -> List[int]:
    """Of a nested tensor only the dimension that all kinds of them have."""
    with look_past(tensor):
        return [int(tensor.size(0))] if tensor.is_nested else list(tensor.shape)


def look_past(tensor: torch.Tensor) -> ContextManager[Any]:
    """In it the class of the script's that the tensor may have is not asked."""
    plain = type(tensor) is torch.Tensor
    return contextlib.nullcontext() if plain else cast(ContextManager[Any], PAST_OVERRIDES.load()())


def read_stored(owner: Any, name: str) -> Any:
    """What an object has stored under a name, as it lies there; None where it has not."""
    found = _read_dict(owner).get(name, _MISSING)
    if found is not _MISSING:
        return found
    for base in type(owner).__mro__:
        member = vars(base).get(name)
        if type(member) is types.MemberDescriptorType:
            try:
                return member.__get__(owner)
            except AttributeError:  # a slot that nothing was put into
                return None
    return None


def _read_dict(owner: Any) -> Dict[str, Any]:
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _list_held(value: Any) -> List[Any]:
    kind = type(value)
    if issubclass(kind, dict):
        return list(dict.values(value))[:MOST]
    if issubclass(kind, list):
        return list.__getitem__(value, slice(MOST))
    if issubclass(kind, tuple):
        return list(tuple.__getitem__(value, slice(MOST)))
    if issubclass(kind, UserDict):
        return [read_stored(value, "data")]
    fields = next((vars(base)[_FIELDS] for base in kind.__mro__ if _FIELDS in vars(base)), ())
    return [read_stored(value, name) for name in fields]
