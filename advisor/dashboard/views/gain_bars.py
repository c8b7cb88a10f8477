"""Gains of a table's rows as bars on one axis around 1x."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from advisor.protocol.gains import Quality, judge_quality

_LEAST_REACH = math.log(1.1)
"""The axis reaches this far at least: noise of a per cent then looks like a per cent."""


class Ranged(Protocol):
    """A ratio of throughputs with its 95 % interval."""

    @property
    def ratio(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class GainBar:
    """An interval in per cent of an axis whose middle is 1x; equal factors are equal lengths."""

    low: float
    likely: float
    high: float
    tone: str
    """good above 1x, bad below it, muted across it."""


def draw_gain_bars(gains: Sequence[Ranged | None]) -> list[GainBar | None]:
    """Return a bar for each gain whose interval is known, all on the axis that the widest of them needs."""
    known = [g if g is not None and judge_quality(g.low, g.high) is Quality.KNOWN else None for g in gains]
    ends = [abs(math.log(end)) for g in known if g is not None for end in (g.low, g.high)]
    reach = max([_LEAST_REACH, *ends])

    def place(ratio: float) -> float:
        return round(50 + 50 * math.log(ratio) / reach, 1)

    return [None if g is None else _draw(place(g.low), place(g.ratio), place(g.high)) for g in known]


def _draw(low: float, likely: float, high: float) -> GainBar:
    return GainBar(low, likely, high, "good" if low > 50 else "bad" if high < 50 else "muted")
