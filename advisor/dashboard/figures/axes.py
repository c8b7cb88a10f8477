"""A knob as the axis of a figure: its tried values in their order, on a number line or as names."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.protocol.base import Value
from advisor.protocol.kinds import Scale
from advisor.protocol.knobs.catalogue import CATALOGUE


@dataclass(frozen=True)
class KnobAxis:
    """The axis of one knob."""

    name: str
    unit: str
    values: tuple[Value, ...]
    """Tried, without repeats, in their order."""
    is_numeric: bool
    is_log: bool

    @classmethod
    def of(cls, name: str, tried: Collection[Value]) -> "KnobAxis":
        """Return the axis of a knob with these tried values."""
        knob, distinct = CATALOGUE.get(name), set(tried)
        is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
        values = tuple(sorted(distinct, key=(lambda v: v) if is_numeric else str))
        wants_log = knob is not None and knob.scale == Scale.LOG
        is_log = wants_log and is_numeric and all(float(value) > 0 for value in values)
        return cls(name, knob.unit if knob is not None else "", values, is_numeric, is_log)

    def show(self, value: Value) -> Value:
        """Return what stands on the axis for a value."""
        return value if self.is_numeric else formats.knob_value(value)

    def spell(self, value: Value) -> str:
        """Return a value in words, with its unit."""
        return formats.knob_value(value, self.unit if self.is_numeric else "")

    def place(self, value: Value) -> float:
        """Return where a value lies between the first one, 0, and the last one, 1."""
        if len(self.values) < 2:
            return 0.5
        if not self.is_numeric:
            return self.values.index(value) / (len(self.values) - 1)
        first, at, last = (self._lie(each) for each in (self.values[0], value, self.values[-1]))
        return (at - first) / (last - first)

    def describe(self) -> dict[str, object]:
        """Return the axis in Plotly's words."""
        if not self.is_numeric:
            return {"type": "category"}
        kind = "log" if self.is_log else "linear"
        ticks = self._thin_ticks()
        return {"type": kind, "tickvals": ticks, "ticktext": [formats.amount(tick) for tick in ticks]}

    def _lie(self, value: Value) -> float:
        return math.log(float(value)) if self.is_log else float(value)

    def _thin_ticks(self) -> Sequence[float]:
        """The values without those whose labels would stand on each other."""
        apart = (self._lie(self.values[-1]) - self._lie(self.values[0])) / 9
        kept: list[float] = []
        last = -math.inf
        for value in self.values:
            if (place := self._lie(value)) - last >= apart:
                kept.append(float(value))
                last = place
        return kept
