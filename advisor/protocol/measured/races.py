"""Races: arms that take turns every few steps inside one launch, and the rules by which that ends."""

from pydantic import Field

from advisor.protocol.base import Message
from advisor.protocol.knobs.changes import Changes


class RaceRules(Message):
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
    target_error: float | None = None
    """The race ends, from `min_steps` on, once the standard error of ln(arm's / first arm's step time) is at most this
    for every arm left in it. None goes on to `target_s`."""
    give_up_ratio: float | None = None
    """An arm whose step surely takes more than this many times that of the fastest arm is given up, at the earliest
    after one step. None gives no arm up."""
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
    calibrate: bool = False
    """Also measure links, gradients and the gradient's noise after the timed steps."""


class BlockPlan(Message):
    """One arm of a race: what its block is to measure."""

    block_id: str
    """Id of the block; the result names it."""
    trial_number: int
    """The trial it belongs to."""
    overrides: Changes = Changes()
    """Knobs to set against the script as it stands; empty is the baseline."""
    rules: RaceRules = RaceRules()
    """The rules of its race."""


class RacePlan(Message):
    """A race to be run: what the server answers to "what comes next?"."""

    arms: tuple[BlockPlan, ...] = Field(min_length=1)
    """Who takes part; the first one is what the others are held against."""

    @property
    def race_id(self) -> str:
        """The id of the first arm's block."""
        return self.arms[0].block_id

    @property
    def rules(self) -> RaceRules:
        """The rules, the same for all arms."""
        return self.arms[0].rules
