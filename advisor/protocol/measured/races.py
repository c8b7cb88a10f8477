"""Races: arms that take turns every few steps inside one launch, and the rules by which that ends."""

from pydantic import Field

from advisor.protocol.base import Message
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import RaceRules


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
