"""What stands in a lab's ledger, and how a lab stands."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.base import Message, Moment
from advisor.protocol.kinds import Effect


class Launch(Message):
    """One side of a lab's race: what is launched, and where."""

    command: str
    """The launch command with its variables in front, as a shell takes it."""
    folder: str
    """Directory that it starts in."""


class Purpose(StrEnum):
    """Why a race of a lab is run."""

    IDEA = "idea"
    """Somebody asked whether an idea is faster than the baseline: only these tell gains, and spend the lab's error."""
    ADOPT = "adopt"
    """A told gain is verified again before it becomes the baseline: it can only be taken back by that."""
    MEASURE = "measure"
    """What the lab brought: today's baseline against that of the start."""


class Opened(Message):
    """The lab begins."""

    kind: Literal["opened"] = "opened"
    lab: str
    """Random name: jobs of the lab carry it."""
    minutes: float
    """Minutes of measuring that all races share."""
    false_gains: float
    """Of the gains told at most this share is none, in expectation."""
    ideas: int
    """So many ideas are expected: they share most of the error."""
    baseline: Launch
    kind_of_workload: str = "pytorch"
    nodes: int = 1


class Started(Message):
    """A race is about to be launched: from here on it counts."""

    kind: Literal["started"] = "started"
    race: int
    """From 1."""
    purpose: Purpose = Purpose.IDEA
    idea: str
    by: str
    a: Launch
    """The unmodified baseline."""
    b: Launch
    effect: Effect
    minutes: float
    min_gain: float
    """Smallest gain worth telling, as a fraction."""
    error: float
    """Probability with which the race tells a gain where there is none."""
    of: int = 0
    """The race whose idea is verified again; 0 for others."""

    @property
    def spent(self) -> float:
        """What of the lab's error it spends: what verifies a told gain again can only take it back."""
        return self.error if self.purpose is Purpose.IDEA else 0.0


class Ended(Message):
    """A race has its answer, or has none."""

    kind: Literal["ended"] = "ended"
    race: int
    answer: RaceAnswer | None = None
    failure: str = ""
    """Why there is no answer."""
    is_told: bool = False
    """Whether it is a gain of the lab."""
    sentence: str
    """What became of it."""


class Adopted(Message):
    """The baseline is another one from here on."""

    kind: Literal["adopted"] = "adopted"
    race: int
    """The race whose idea it is."""
    verified_by: int
    """The race that verified it again."""
    baseline: Launch


Event = Annotated[Opened | Started | Ended | Adopted, Field(discriminator="kind")]


class Entry(Message):
    """A line of the ledger."""

    at: Moment
    event: Event
    before: str
    """Digest of the entry before; empty in the first one."""
    digest: str
    """SHA-256 of everything else in this entry, as JSON with sorted keys and without blanks."""


class LabStatus(Message):
    """How a lab stands."""

    lab: str
    minutes: float
    minutes_left: float
    false_gains: float
    spent: float
    """Error spent, summed over its races as shares of `false_gains`; 1 is all of what the promise allows before a gain
    earns more."""
    next_error: float
    """What the next idea's race may spend: the probability with which it tells a gain where there is none."""
    ideas: int
    """Ideas raced so far, whether or not their askers looked."""
    told: tuple[int, ...]
    """Races that told a gain."""
    adopted: tuple[int, ...]
    """Races whose idea became the baseline, in their order."""
    open: tuple[int, ...]
    """Races that were started and have no end yet: under way, or killed."""
    baseline: Launch
    """Today's."""
    promise: str
