"""What of a search its figures show: one filter for all of them, and the two knobs of the contour, from the address."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from advisor.dashboard.views.trials.measured import MeasuredTrial
from advisor.dashboard.views.trials.table import TrialQuery
from advisor.errors import InvalidRequest
from advisor.protocol.base import Value
from advisor.protocol.plain_text import clean_text

_LONGEST = 100


@dataclass(frozen=True)
class ExploreQuery:
    """The filter."""

    trials: TrialQuery = field(default_factory=TrialQuery)
    """State, rung and words of the changes, as in the table of trials."""
    knob: str = ""
    """Whose values have to lie within `low` and `high`; empty does not look at values."""
    low: float | None = None
    high: float | None = None
    x: str = ""
    y: str = ""
    """Knobs of the contour; empty chooses."""

    @classmethod
    def read(cls, parameters: Sequence[tuple[str, str]]) -> "ExploreQuery":
        """Return the query of an address. Raises InvalidRequest with what would do."""
        given = dict(parameters)
        low, high = (_read_number(name, given.get(name, "").strip()) for name in ("low", "high"))
        knob, x, y = (given.get(name, "")[:_LONGEST] for name in ("knob", "x", "y"))
        if not knob and (low is not None or high is not None):
            raise InvalidRequest(
                "The range is of no knob.", hint="Choose the knob, or leave the range empty."
            )
        if low is not None and high is not None and low > high:
            raise InvalidRequest(f"No value lies between {low:g} and {high:g}.", hint="Swap the two.")
        known = [pair for pair in parameters if pair[0] in {"state", "rung", "changes"}]
        return cls(TrialQuery.read(known), knob, low, high, x, y)

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves trials out."""
        return self.trials.is_filtered or bool(self.knob and (self.low is not None or self.high is not None))

    def select(self, trials: Sequence[MeasuredTrial], own: Mapping[str, Value]) -> list[MeasuredTrial]:
        """Return the trials that belong; `own` are the values of what a trial does not change."""
        return [found for found in trials if self.trials.admits(found) and self._is_within(found, own)]

    def _is_within(self, found: MeasuredTrial, own: Mapping[str, Value]) -> bool:
        if not self.knob or (self.low is None and self.high is None):
            return True
        value = found.trial.changes.get(self.knob, own.get(self.knob))
        if not isinstance(value, int | float):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


def _read_number(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"{name}: {clean_text(text)[:40]} is no number.", hint="For example 8 or 0.5.")
    return number
