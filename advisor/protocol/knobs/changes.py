"""Changes: what a strategy sets against the script as it stands, the currency between search, ranks and advice."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE, spell_with_unit
from advisor.protocol.knobs.knob import Effect, Switch

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

    @property
    def effect(self) -> Effect:
        """The highest effect among the changed knobs: the strategy's rung."""
        return max(
            (CATALOGUE[name].effect for name in self), key=lambda effect: effect.rank, default=Effect.EXACT
        )

    @property
    def cold(self) -> "Changes":
        """The part that needs new processes."""
        return Changes({n: value for n, value in self.items() if CATALOGUE[n].switch is Switch.COLD})

    @property
    def launch_variables(self) -> dict[str, str]:
        """The environment variables that carry the cold part into the ranks; of knobs of the catalogue only."""
        variables = {}
        for name, value in self.items():
            variable = CATALOGUE[name].launch_variable if name in CATALOGUE else None
            if variable is not None:
                variables[variable] = str(int(value)) if isinstance(value, bool) else str(value)
        return variables

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
