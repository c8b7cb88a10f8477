"""What every lever offers, and how it states whether a knob was consumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple


class RelaunchNeeded(RuntimeError):
    """This strategy cannot be switched to in a live process; start a new session with it."""


@dataclass
class Evidence:
    """For every knob a strategy set: a sentence why it was in force, or why it was not."""

    consumed: Dict[str, str] = field(default_factory=dict)
    not_consumed: Dict[str, str] = field(default_factory=dict)
    no_effect: Dict[str, str] = field(default_factory=dict)
    """Knobs in force that leave the job exactly as the baseline (the same buckets, for example)."""

    def add(self, other: "Evidence") -> None:
        self.consumed.update(other.consumed)
        self.not_consumed.update(other.not_consumed)
        self.no_effect.update(other.no_effect)


class Lever(ABC):
    """Base of all levers. A block is always the baseline plus its overrides, so `switch({})` means the baseline."""

    knobs: Tuple[str, ...] = ()

    def list_refusals(self) -> Dict[str, str]:
        """Knobs that cannot work in this job, each with its sentence. Every rank calls it at the same boundary."""
        return {}

    @abstractmethod
    def switch(self, values: Mapping[str, Any], replicas: List[Any]) -> None:
        """Goes from whatever is in force to baseline + `values` (only this lever's knobs) on the live DDP models."""

    def begin_timing(self) -> None:  # noqa: B027 - a lever without counters has nothing to start
        """The timed steps start: counters used as evidence start again."""

    @abstractmethod
    def prove(self) -> Evidence:
        """Whether the last `switch` was consumed by the steps timed since."""


def read_count(value: Any, least: int) -> int:
    """A whole number of at least `least`, or ValueError with a sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value or value < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return int(value)


def read_switch(value: Any) -> bool:
    """True or False (0 and 1 are taken), or ValueError with a sentence."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{value!r} is neither true nor false")
