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


class KnobEffect(Message):
    """What one knob brings: the winner against the winner without it, in interleaved rounds."""

    saved_s: float
    """Seconds a step that the knob saves."""
    low_s: float
    high_s: float
    """The 95 % interval of the saving."""
    rounds: int
    """Rounds it rests on."""


class KnobReason(Message):
    """Why one knob changed."""

    knob: str
    before: Value
    after: Value
    sentence: str
    """What it changes and the evidence."""
    evidence: str = ""
    """The runtime's proof that it was in force."""
    effect: KnobEffect | None = None
    """What taking this knob back measured (knobs that only go back together share it); None where it was not."""


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
    efficiency: float | None = None
    """Statistical efficiency: progress per sample over the baseline's, at most 1; None where it was not measured."""
    goodput: Interval | None = None
    """Throughput ratio times efficiency; None without an efficiency."""
    admitted: bool = True
    """Whether the loss guard lets it be advised."""


class Finding(Message):
    """One thing that may bound a step, with its evidence."""

    bound: str
    """"communication", "compute", "input", "straggler" or "launch"."""
    share: float
    """Its share of the baseline's step, 0 to 1."""
    holds: bool
    """Whether it bounds the step."""
    evidence: str
    """The figures, in a sentence."""
    knobs_in: tuple[str, ...] = ()
    """Knobs that act on it and were searched."""
    knobs_out: tuple[str, ...] = ()
    """Knobs that act on it and were left out because it is negligible."""


class Diagnosis(Message):
    """Where the time goes, and what that rules out."""

    bound: str
    """"communication", "compute", "input", "straggler", "launch", "balanced", "unmeasured"."""
    sentence: str
    """The finding with its figures."""
    ceiling_ratio: float | None = None
    """Most that removing exposed communication altogether could bring (throughput ratio)."""
    skew: float = 0.0
    """Slowest rank's median step time over the median rank's, minus 1."""
    flags: tuple[NodeFlag, ...] = ()
    """Nodes that hold the others up, or whose figures cannot be trusted."""
    findings: tuple[Finding, ...] = ()
    """Everything that may bound a step, largest share first."""
    scaling_before: float | None = None
    """Scaling efficiency of the baseline: the step without communication over the step."""
    scaling_after: float | None = None
    """The same for the advised strategy."""


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


class ParetoPoint(Message):
    """A strategy in the plane of throughput and loss."""

    trial_number: int
    changes: dict[str, Value]
    effect: Effect
    throughput_ratio: float
    """Throughput over the baseline's."""
    loss_change: float | None
    """Loss at equal samples minus the baseline's; 0 for exact strategies, None where it was not seen."""
    loss_error: float | None = None
    """Standard error of the loss change."""
    confirmed: bool = False
    """Whether the ratio is the confirmation's; the search's best ratios look better than they are."""
    on_front: bool
    """No other point is both faster and no worse in loss."""


class Forecast(Message):
    """What the cost model expects on another cluster: a prediction, not a measurement."""

    nodes: int
    bits_per_s: float | None = None
    """Bandwidth of a node's link; None keeps the measured one."""
    changes: dict[str, Value]
    """The strategy that it favours there, against the baseline."""
    step_time_s: float
    """Predicted step time of that strategy."""
    baseline_step_time_s: float
    """Predicted step time of the script as it stands."""
    samples_per_s: float
    """Predicted throughput of that strategy."""
    low: float
    high: float
    """The band of that throughput."""
    scaling_efficiency: float
    """Predicted throughput over that of as many nodes without communication."""
    caveat: str = ""
    """How far this reaches beyond what was measured."""


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
    taken_back: tuple[KnobReason, ...] = ()
    """Knobs of the finals' winner that did not earn their place: `after` is the value that was tried."""
    ladder: tuple[RungAdvice, ...] = ()
    """Other rungs, measured beside the verdict and never mixed into it."""
    diagnosis: Diagnosis
    phases_before: Phases
    phases_after: Phases
    buckets_before: tuple[int, ...] = ()
    buckets_after: tuple[int, ...] = ()
    cost: Cost
    dropped: tuple[DroppedKnob, ...] = ()
    pareto: tuple[ParetoPoint, ...] = ()
    """Throughput against loss of what was measured, fastest first."""
    forecasts: tuple[Forecast, ...] = ()
    """The cost model's what-ifs: more nodes, other links."""
    search_ended_because: str = ""
    """Why the search stopped where it did."""
    next_steps: tuple[str, ...] = Field(default=())
    """What to do next, what no knob can fix included."""
    cluster: str = ""
    """The hardware in one phrase."""
    software: dict[str, str] = Field(default_factory=dict)
    """Versions that the advice is valid for."""
