"""The advice: verdict with interval, reasons, cost, and what was left on the table."""

from enum import StrEnum

from pydantic import Field

from advisor.protocol.base import Message, Value
from advisor.protocol.knobs import Effect
from advisor.protocol.telemetry import NodeFlag
from advisor.protocol.trials import Phases


class Verdict(StrEnum):
    """What the advice comes down to."""

    CHANGE = "change"
    """A reliable gain: use the strategy."""
    KEEP = "keep"
    """No reliable gain: keep your defaults."""


class Provenance(StrEnum):
    """How much is known about a field of the exported strategy."""

    MEASURED = "measured"
    """Varied and timed as this very knob."""
    TRANSLATED = "translated"
    """Timed through its PyTorch equivalent."""
    CARRIED = "carried"
    """Exported at its default or rule of thumb, not timed."""


class Interval(Message):
    """A ratio with its 95 % interval."""

    ratio: float
    """Point estimate: strategy over baseline throughput."""
    low: float
    high: float
    rounds: int
    """Interleaved rounds it rests on."""
    sessions: int
    """Fresh launches it rests on."""

    def describe(self) -> str:
        """`+18.4 % (95 % CI +15.9 … +20.7)`."""
        return (
            f"{(self.ratio - 1) * 100:+.1f} % (95 % CI {(self.low - 1) * 100:+.1f} … "
            f"{(self.high - 1) * 100:+.1f})"
        )


class KnobReason(Message):
    """Why one knob changed."""

    knob: str
    before: Value
    after: Value
    sentence: str
    """What it changes and the evidence."""
    evidence: str = ""
    """The runtime's proof that it was in force."""


class DroppedKnob(Message):
    """A knob that was not searched, with its sentence."""

    knob: str
    reason: str


class RungAdvice(Message):
    """What one rung of the ladder measured."""

    effect: Effect
    changes: dict[str, Value]
    gain: Interval | None
    """None when it was searched but never confirmed."""
    sentence: str
    """The gain and its price in words."""
    caveat: str = ""
    """What a short trial cannot see."""


class Diagnosis(Message):
    """Where the time goes, and what that rules out."""

    bound: str
    """"communication", "compute", "input", "straggler", "balanced", "unmeasured"."""
    sentence: str
    """The finding with its figures."""
    ceiling_ratio: float | None = None
    """Most that removing exposed communication altogether could bring (throughput ratio)."""
    skew: float = 0.0
    """Slowest rank's median step time over the median rank's, minus 1."""
    flags: tuple[NodeFlag, ...] = ()
    """Nodes that hold the others up, or whose figures cannot be trusted."""


class Cost(Message):
    """What the advice cost."""

    wall_s: float
    """Wall time of all sessions."""
    device_hours: float
    """Devices (or CPU nodes' ranks) times hours."""
    trials: int
    """Strategies measured."""
    sessions: int
    """Launches."""
    pays_back_after_s: float | None = None
    """Training time after which the gain has paid for the tuning; None without a gain."""


class Advice(Message):
    """The answer to a job."""

    job_id: str
    verdict: Verdict
    headline: str
    """One sentence: `+18.4 % throughput (95 % CI …) …` or `No reliable gain: keep your defaults.`"""
    allowed: Effect
    """The highest rung the job allows."""
    strategy: dict[str, Value]
    """A value for every knob: the advised strategy (the baseline when the verdict is keep)."""
    baseline: dict[str, Value]
    """A value for every knob: the script as it stands."""
    changes: dict[str, Value]
    """Knobs that differ; empty when the verdict is keep."""
    provenance: dict[str, Provenance]
    """For every knob."""
    gain: Interval | None = None
    """The confirmed ratio; also given when it does not support a change. None when nothing was confirmed."""
    baseline_samples_per_s: float
    """Throughput of the baseline in the confirmation (in the probe when there was none)."""
    strategy_samples_per_s: float
    """Throughput of the advised strategy in the confirmation."""
    reasons: tuple[KnobReason, ...] = ()
    ladder: tuple[RungAdvice, ...] = ()
    """Other rungs, measured beside the verdict and never mixed into it."""
    diagnosis: Diagnosis
    phases_before: Phases
    phases_after: Phases
    buckets_before: tuple[int, ...] = ()
    buckets_after: tuple[int, ...] = ()
    cost: Cost
    dropped: tuple[DroppedKnob, ...] = ()
    next_steps: tuple[str, ...] = Field(default=())
    """What to do next, what no knob can fix included."""
    cluster: str = ""
    """The hardware in one phrase."""
    software: dict[str, str] = Field(default_factory=dict)
    """Versions that the advice is valid for."""
