"""Changes: what a strategy sets against the script as it stands, the currency between search, ranks and advice."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from advisor.protocol.base import Value

INTERVALS: Mapping[str, str] = {
    "localsgd": "localsgd_k_steps",
    "adaptive_localsgd": "adaptive_localsgd_init_k_steps",
    "gradient_merge": "gradient_merge_k_steps",
}
"""Switches under which not every step is alike, each with the knob that says how many steps it spans."""


class Changes(dict[str, Value]):
    """Knob -> value, frozen: equal changes are one key, in whatever order they are listed. Empty is the baseline."""

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        super().__init__(values or {})

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.items()))

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash

    def describe(self) -> str:
        """`fuse_grad_size_in_MB 4, num_threads 2`; `the baseline` without changes."""
        return ", ".join(f"{name} {spell_with_unit(value)}" for name, value in self.items()) or "the baseline"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Changes are frozen: make new ones.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type["Changes"], tuple[dict[str, Value]]]:
        return Changes, (dict(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler(dict[str, Value]))


def period_of(values: Mapping[str, Value]) -> int:
    """Return the number of steps after which the pattern of a strategy repeats; `values` may be changes only."""
    return max(
        (int(values.get(interval, 1)) for name, interval in INTERVALS.items() if values.get(name)), default=1
    )


def spell_with_unit(value: Value, unit: str = "") -> str:
    """Return a knob's value as people write it: `on`, `32 MB`, `1 thread`, `2 threads`, `empty` for no text."""
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    # A script's own 20,971 bytes are 0.0199995 MB: four digits are enough to know it by.
    digits = ".4g" if isinstance(value, float) and abs(value) < 1 else "g"
    text = format(value, digits) if isinstance(value, float) else str(value)
    if unit.endswith("s") and text == "1":
        unit = unit.removesuffix("es") if unit.endswith(("sses", "ches")) else unit[:-1]
    return f"{text} {unit}".strip()
