"""Configuration files (JSON, YAML, TOML): what a dotted key holds, and the same tree with other values."""

import json
import tomllib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from yaml import MappingNode, Node

from advisor.protocol.near_names import find_nearest
from advisor.protocol.training.yaml_keys import (
    list_children,
    read_nodes,
    read_scalar,
    replace_child,
    spell_scalar,
)

if TYPE_CHECKING:
    from advisor.protocol.base import Value  # which would load pydantic where nothing but this is needed

_MOST_KEYS = 2_000
"""Keys that a mistyped one is compared with."""


def read_tree(text: str, suffix: str) -> object:
    """Return what a file of that ending holds, YAML as its nodes; raises ValueError where it cannot be read."""
    if suffix == ".toml":
        return tomllib.loads(text)
    return json.loads(text) if suffix == ".json" else read_nodes(text)


def read_key(path: Path, key: str) -> "Value":
    """Return the number, word or switch at a dotted key; raises ValueError or OSError with a sentence."""
    tree = read_tree(path.read_text(), path.suffix)
    found = _read_leaf(_find(tree, key, tree))
    if not isinstance(found, bool | int | float | str):
        raise ValueError(f"{key} holds neither a number nor a word in {path}")
    return found


def fit_to_file(values: "Sequence[Value]", today: "Value", key: str) -> "tuple[tuple[Value, ...], Value]":
    """Return the values to try of a key that has `today`, and that one, all of them numbers or all words.

    Raises ValueError for what the key cannot hold: a word where a number stands, anything but true and false for a
    switch.
    """
    if isinstance(today, bool):
        words = tuple(str(value).lower() for value in values)
        if odd := [word for word in words if word not in {"true", "false"}]:
            raise ValueError(f"{key} is {str(today).lower()}, a switch, which {odd[0]!r} is not: true,false")
        return words, str(today).lower()
    if isinstance(today, str):
        return tuple(str(value) for value in values), today
    if any(isinstance(value, str) for value in values):
        given = ", ".join(map(str, values))
        raise ValueError(f"{key} is {today}, a number, and {given} are not all numbers")
    return tuple(values), today


def set_keys(tree: object, values: "Mapping[str, Value]") -> object:
    """Return the tree with other values at dotted keys, each in the type that it has.

    Nothing else changes, whatever shares a branch with it. Raises ValueError naming a missing key.
    """
    for key, value in values.items():
        tree = _put(tree, key.split("."), _like(_read_leaf(_find(tree, key, tree)), value))
    return tree


def list_branches(tree: object) -> Mapping[str, object]:
    if isinstance(tree, MappingNode):
        return list_children(tree)
    return tree if isinstance(tree, dict) else {}


def _read_leaf(leaf: object) -> object:
    return read_scalar(leaf) if isinstance(leaf, Node) else leaf


def _find(at: object, key: str, tree: object) -> object:
    for name in key.split("."):
        branches = list_branches(at)
        if name not in branches:
            near = find_nearest(key, list_keys(tree))
            asked = f"did you mean {' or '.join(near)}?" if near else "name one that it holds"
            raise ValueError(f"the file has no key {key}: {asked}")
        at = branches[name]
    return at


def _put(tree: object, names: list[str], value: "Value") -> object:
    branches = list_branches(tree)
    if not names:
        return spell_scalar(value) if isinstance(tree, Node) else value
    below = _put(branches[names[0]], names[1:], value)
    if isinstance(tree, MappingNode):
        assert isinstance(below, Node)
        return replace_child(tree, names[0], below)
    return {**branches, names[0]: below}


def list_keys(tree: object) -> list[str]:
    """Return the first keys that hold values; a shared branch counts once, for its keys may be endlessly many."""
    keys: list[str] = []
    seen: set[int] = set()
    waiting = deque([("", tree)])
    while waiting and len(keys) < _MOST_KEYS:
        above, at = waiting.popleft()
        branches = list_branches(at)
        if not branches:
            keys.append(above[:-1])
        elif id(at) not in seen:
            seen.add(id(at))
            waiting += [(f"{above}{name}.", below) for name, below in branches.items()]
    return keys


def _like(present: object, value: "Value") -> "Value":
    if isinstance(present, bool):
        return str(value).lower() in ("1", "true", "on", "yes")
    if isinstance(present, float) and isinstance(value, int | float):
        return float(value)
    return value
