"""What a race of two launches found: the one answer of `advisor race`, the Python client, REST, MCP and the lab."""

from pydantic import Field

from advisor.protocol.answers.advice import Cost
from advisor.protocol.base import Message
from advisor.protocol.gains import describe_ratio
from advisor.protocol.measured.results import Phases
from advisor.protocol.states import Verdict
from advisor.protocol.training.workload import SAMPLES_PER_S


class Gain(Message):
    """B's throughput over A's, with its interval: 1.05 is 5 % faster."""

    low: float
    """Lower end of the 95 % interval, wider where the race was asked for a smaller error."""
    likely: float
    """The likeliest value."""
    high: float
    """Upper end."""
    rounds: int
    """Interleaved rounds that it rests on; 0 where each command had launches of its own."""
    launches: int
    """Fresh launches that it rests on."""


class RacedSide(Message):
    """One of the two launches. What it counts was counted by the runtime, not told by the script."""

    command: str
    """The launch command with its variables in front, as a shell takes it."""
    rate: float | None
    """What it trains a second in the races that the gain stands on; None where it was not measured."""
    rate_unit: str = SAMPLES_PER_S
    """What `rate` counts: `steps/s` where the runtime finds no samples."""
    account: Phases | None = None
    """Where a step's time goes."""
    samples_per_step: float | None = None
    """Samples of all ranks in one optimizer step; None where it was not measured."""
    forwards_per_step: float | None = None
    """Forward passes in one optimizer step; None where the runtime did not tell."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Digests of the script's own files that ran, by their paths from the working directory."""


class Difference(Message):
    """Something that differs between the two launches besides their speed."""

    name: str
    """For programs: batch, accumulation, input, parameters, gradients, optimizer, backward, counting, data,
    computation, format, learning, clipping, averages and exchange are other work; batches, dropout and clock mislead;
    evaluation does where it takes the gain back; script, start, steps, ranks, device, loader, software and work are
    told beside."""
    a: str
    b: str
    sentence: str
    """The same for people: `B takes an optimizer step every 2 forward passes, A every 1.`"""
    is_other_work: bool = False
    """Whether samples of B are not the same work as A's, so that its samples per second prove nothing by themselves."""
    misleads: bool = False
    """Whether its losses, or its seconds, prove nothing either: then no gain is told whatever B was said to change."""


def tell_difference(
    name: str, a: str, b: str, sentence: str, *, is_other_work: bool = False, misleads: bool = False
) -> Difference:
    """Return it, with `{a}` and `{b}` of the sentence filled in."""
    told = sentence.format(a=a, b=b)
    return Difference(
        name=name, a=a, b=b, sentence=told, is_other_work=is_other_work or misleads, misleads=misleads
    )


class LabPlace(Message):
    """The place of a race in a lab."""

    number: int
    """Its number in the lab, from 1."""
    idea: str
    by: str
    """Who asked."""
    error: float
    """What of the lab's error it spent: the probability with which it tells a gain where there is none. 0 for one that
    verifies a told gain again."""
    is_told: bool
    """Whether it counts as a gain of the lab, for which the lab's promise holds."""
    sentence: str
    """What became of it, for people."""


class RaceAnswer(Message):
    """What a race of A and B found."""

    job_id: str
    verdict: Verdict
    """Change: B is faster. Keep: it is not, by more than the smallest gain asked for. Undecided: neither is shown."""
    gain: Gain | None
    """None where nothing was measured of B."""
    because: str
    """Why it is decided, or why it is not: a sentence or two."""
    what_to_do: str
    """One line."""
    cost: Cost
    a: RacedSide
    """With the account before."""
    b: RacedSide
    """With the account after."""
    differences: tuple[Difference, ...] = ()
    """What else changed, told for people and programs."""
    verify_again: str = ""
    """The command that asks the same question anew."""
    lab: LabPlace | None = None
    """Its place in a lab; None outside one."""

    def describe_gain(self) -> str:
        """`at least +1.1 %, most likely +3.5 % (95 % CI +1.1 … +6.0 %)`, as far as it is known; "" without a gain.

        An open verdict has no bound: one launch alone tells an interval as well.
        """
        if self.gain is None:
            return ""
        ends = (self.gain.likely, self.gain.low, self.gain.high)
        return describe_ratio(*ends, is_shown=self.verdict is not Verdict.UNDECIDED)

    @property
    def is_like_for_like(self) -> bool:
        """Whether a sample is the same work in both, as far as the runtime can count."""
        return not any(difference.is_other_work for difference in self.differences)
