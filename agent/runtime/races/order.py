"""What the agent asked for: the arms of a race, and the rules by which it is run and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple


@dataclass(frozen=True)
class RaceRules:
    """The server's own rules (`advisor.protocol.measured.races.RaceRules`), with its names and defaults."""

    warmup_steps: int = 5
    """Untimed steps of each arm before its first segment."""
    segment_steps: int = 5
    """Steps of an arm before the next one takes over, where switching costs next to nothing."""
    min_steps: int = 20
    max_steps: int = 200
    target_s: float = 3.0
    """Seconds that the timed steps of one arm should last, within those limits."""
    target_error: Optional[float] = None
    """Standard error of ln(arm's / first arm's step time) that is enough, from `min_steps` on."""
    give_up_ratio: Optional[float] = None
    """An arm is given up once its step surely takes more than this many times that of the fastest."""
    profile_steps: int = 3
    long_turn_steps: int = 0
    """One turn of each arm is so long, and tells whether the others are too short."""
    loss_check_steps: int = 0
    """After each segment that began from the saved state: steps on the same batches without learning."""
    loss_check_offset: int = 0
    """Batches that come at the end of their epoch instead, so that the checks of two launches have different ones."""
    calibrate: bool = False
    """Watch gradients and measure links under the first arm after the timed steps."""


@dataclass(frozen=True)
class ArmOrder:
    """One strategy to be measured."""

    block_id: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Knob values on top of the baseline; empty means the baseline itself."""


@dataclass(frozen=True)
class RaceOrder:
    """A whole race."""

    race_id: str
    arms: Tuple[ArmOrder, ...]
    """The first one is what the others are held against."""
    rules: RaceRules


def parse_race(message: Mapping[str, Any], base: Mapping[str, Any]) -> RaceOrder:
    """`base` stands in every arm that does not set its knobs.

    Fields that a newer agent added are ignored; missing ones take their defaults. Raises ValueError, KeyError.
    """
    given = message.get("rules") or {}
    rules = RaceRules(**{n: given[n] for n in RaceRules.__dataclass_fields__ if given.get(n) is not None})
    if rules.min_steps < 1 or rules.max_steps < rules.min_steps or rules.segment_steps < 1:
        raise ValueError(
            f"A race of {rules.min_steps} to {rules.max_steps} steps an arm, {rules.segment_steps} in a segment, "
            "cannot be run."
        )
    for name in ("give_up_ratio", "target_error"):
        limit = getattr(rules, name)
        if limit is not None and not (isinstance(limit, (int, float)) and 0 < limit < math.inf):
            raise ValueError(f"{name} is {limit!r}; it must be a number above 0, or missing.")
    arms = tuple(
        ArmOrder(str(arm["block_id"]), {**base, **(arm.get("overrides") or {})}) for arm in message["arms"]
    )
    if not arms or len({arm.block_id for arm in arms}) != len(arms):
        raise ValueError("A race needs at least one arm, and another block for each.")
    return RaceOrder(str(message["race_id"]), arms, rules)
