"""What the agent asked for: the arms of a race, the rules by which it is run and ends, and whose turn it is when.

Declared here for both ends of the socket, and for the server: its protocol takes `RaceRules` as they are.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence, Tuple, TypeVar


@dataclass(frozen=True)
class RaceRules:
    """How a race is run and when it ends. What is decided here reaches the ranks unchanged.

    Arms take turns in segments of a few steps; a cycle holds one segment of every arm, in balanced random order. Arms
    that are slow to switch to have longer segments. A race of one arm is a block of steps under one strategy.
    """

    warmup_steps: int = 5
    """Untimed steps of each arm before its first segment: the first ones pay for the switch."""
    segment_steps: int = 5
    """Steps of an arm before the next one takes over; the ranks lengthen segments where switching takes long."""
    min_steps: int = 20
    """Fewest timed steps of an arm that is not given up."""
    max_steps: int = 200
    """Most timed steps of an arm."""
    target_s: float = 3.0
    """Seconds that the timed steps of one arm should last, within those limits."""
    target_error: Optional[float] = None
    """The race ends, from `min_steps` on, once the standard error of ln(arm's / first arm's step time) is at most this
    for every arm left in it. None goes on to `target_s`."""
    give_up_ratio: Optional[float] = None
    """An arm whose step surely takes more than this many times that of the fastest arm is given up, at the earliest
    after one step. None gives no arm up."""
    least_samples_per_s: Optional[float] = None
    """An arm that races alone is given up where each rank surely trains on fewer samples a second. None never does."""
    profile_steps: int = 3
    """Steps of each arm after the timed ones that measure the phases."""
    long_turn_steps: int = 0
    """Where a race has cycles enough, one of them has turns so long. An arm whose ratio in the later half of it is
    surely another than in the short turns ends with `relaunch_needed`: it is measured in launches of its own. 0 has no
    such cycle."""
    loss_check_steps: int = 0
    """Where segments begin from the saved state: steps after each segment, on the same batches for all of them, that
    tell its loss while nothing is learned. 0 compares the losses of the timed steps."""
    loss_check_offset: int = 0
    """So many of the script's next batches come at the end of their epoch instead, so that a launch's loss check has
    other batches than the launches before. The same for every arm of the race."""
    bit_check_steps: int = 0
    """Before the timed steps: so many steps of each arm from the same state, with the same batches and random numbers,
    after which the whole state is held against the first arm's, bit for bit. 0 checks nothing."""
    calibrate: bool = False
    """Also measure links, gradients and the gradient's noise after the timed steps."""
    ceiling: bool = False
    """Also count a step's operations, and time what this device and the links between ranks could do."""
    weighs: bool = False
    """Of a race of one arm: also weigh what a step computes, is given and changes, in steps after the timed ones."""
    looks_closely: bool = False
    """A diagnosis: a thread in each rank samples in which lines it stands, and all that was timed is told, step by
    step."""


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
    for name in ("give_up_ratio", "least_samples_per_s", "target_error"):
        limit = getattr(rules, name)
        if limit is not None and not (isinstance(limit, (int, float)) and 0 < limit < math.inf):
            raise ValueError(f"{name} is {limit!r}; it must be a number above 0, or missing.")
    arms = tuple(
        ArmOrder(str(arm["block_id"]), {**base, **(arm.get("overrides") or {})}) for arm in message["arms"]
    )
    if not arms or len({arm.block_id for arm in arms}) != len(arms):
        raise ValueError("A race needs at least one arm, and another block for each.")
    return RaceOrder(str(message["race_id"]), arms, rules)


T = TypeVar("T")


def order_turns(race_id: str, cycle: int, arms: Sequence[T]) -> List[T]:
    """A random order, and in the next cycle its reverse: what drifts steadily hits all arms alike.

    So the last arm of the first cycle is the first one of the second, and takes its two segments in one go. It makes
    one untimed step less, and by chance so does the first one of the next cycle: what the script does every few steps
    (a batch that comes late, a log) is bound neither to the untimed steps nor to an arm.
    """
    order = list(arms)
    random.Random(f"{race_id}/{cycle // 2}").shuffle(order)
    return order[::-1] if cycle % 2 else order


def choose_offset(race_id: str, cycle: int, place: int, most: int) -> int:
    """By chance none or up to `most` - 1 more untimed steps before this arm's turn in that cycle."""
    return random.Random(f"{race_id}/{cycle}/{place}").randrange(most)
