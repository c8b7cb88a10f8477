"""Configuration files (JSON, YAML, TOML): what a dotted key holds, and the same tree with other values."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import yaml

from advisor.protocol.base import Value
from advisor.protocol.near_names import find_nearest


def read_tree(text: str, suffix: str) -> object:
    """Return what a file of that ending holds; raises ValueError where it cannot be read."""
    try:
        if suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text) if suffix == ".json" else yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML ({error})") from error


def read_key(path: Path, key: str) -> Value:
    """Return the number, word or switch at a dotted key; raises ValueError or OSError with a sentence."""
    above, last = _find(read_tree(path.read_text(), path.suffix), key)
    found = above[last]
    if not isinstance(found, bool | int | float | str):
        raise ValueError(f"{key} holds neither a number nor a word in {path}")
    return found


def set_keys(tree: object, values: Mapping[str, Value]) -> None:
    """Put other values at dotted keys, each in the type it has today; raises ValueError naming a missing key."""
    for key, value in values.items():
        above, last = _find(tree, key)
        above[last] = _like(above[last], value)


def _find(tree: object, key: str) -> tuple[dict[str, object], str]:
    *above, last = key.split(".")
    at = tree
    for name in above:
        at = at.get(name) if isinstance(at, dict) else None
    if not isinstance(at, dict) or last not in at:
        near = find_nearest(key, _list_keys(tree))
        asked = f"did you mean {' or '.join(near)}?" if near else "name one that it holds"
        raise ValueError(f"the file has no key {key}: {asked}")
    return at, last


def _list_keys(tree: object, above: str = "") -> list[str]:
    if not isinstance(tree, dict):
        return [above[:-1]]
    return [key for name, below in tree.items() for key in _list_keys(below, f"{above}{name}.")]


def _like(present: object, value: Value) -> Value:
    if isinstance(present, bool):
        return str(value).lower() in ("1", "true", "on", "yes")
    if isinstance(present, float) and isinstance(value, int | float):
        return float(value)
    return value
