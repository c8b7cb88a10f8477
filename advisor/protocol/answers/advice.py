"""The advice: verdict with interval, reasons, cost, and what was left on the table."""

from enum import StrEnum
from functools import cached_property

from pydantic import Field, computed_field

from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.answers.moods import Moods
from advisor.protocol.base import Message, Value
from advisor.protocol.gains import Quality, describe_ratio, judge_quality
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.knobs.catalogue import Catalogue, join_own
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.in_script import fit_to_script
from advisor.protocol.measured.results import Phases
from advisor.protocol.measured.telemetry import NodeFlag
from advisor.protocol.states import Verdict as Verdict
from advisor.protocol.training.own_knobs import OwnKnob

CONTINUE_S = 300.0
"""What a job is given more where the user does not say how much."""


class Action(StrEnum):
    """What a reader of the advice should do next."""

    USE = "use"
    """Put the strategy in place."""
    KEEP = "keep"
    """Change nothing."""
    CONTINUE = "continue"
    """Give the job more time; it goes on where it stands."""
    MEND_SCRIPT = "mend_script"
    """Mend the script: it fails, or ends, before anything can be decided."""
    CHECK_ACCURACY = "check_accuracy"
    """It is faster; compare the accuracy of one full training before using it."""


class Provenance(StrEnum):
    """How much is known about a field of the exported strategy."""

    MEASURED = "measured"
    """Varied and timed as this very knob."""
    TRANSLATED = "translated"
    """Timed through its PyTorch equivalent."""
    CARRIED = "carried"
    """Exported at its default or rule of thumb, not timed."""


_PROVENANCE_WORDS = {
    Provenance.MEASURED: "timed",
    Provenance.TRANSLATED: "timed in PyTorch",
    Provenance.CARRIED: "not timed",
}


def name_provenance(provenance: Provenance) -> str:
    """Return how people are told what a value rests on: `timed in PyTorch`."""
    return _PROVENANCE_WORDS[provenance]


class Interval(Message):
    """A ratio with its 95 % interval."""

    ratio: float
    """Point estimate: strategy over baseline throughput."""
    low: float
    high: float
    rounds: int
    """Cycles of races (interleaved A/B rounds) it rests on."""
    sessions: int
    """Fresh launches it rests on."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def quality(self) -> Quality:
        """How much of it may be told: `known`, `bounded` (only its end next to no gain), `unknown` (nothing)."""
        return judge_quality(self.low, self.high)

    @property
    def is_known(self) -> bool:
        """Whether its likeliest value and both of its ends may be told."""
        return self.quality is Quality.KNOWN

    def describe(self) -> str:
        """`at least +1.1 %, most likely +3.5 % (95 % CI +1.1 … +6.0 %)`: what is sure comes first.

        Gains of 30 % and more are factors: `at least 1.8x faster, most likely 3.1x (95 % CI 1.8x … 5.4x)`. An interval
        that reaches 1 has no such bound: `most likely −0.7 % (95 % CI −3.4 … +2.1 %)`. What is not known is not told.
        """
        return describe_ratio(self.ratio, self.low, self.high)

    def describe_basis(self) -> str:
        """`8 interleaved rounds in 2 launches`; `4 launches` where each held one strategy, so that none was raced."""
        launches = f"{self.sessions} launch{'es' if self.sessions != 1 else ''}"
        if not self.rounds:
            return launches
        return f"{self.rounds} interleaved round{'s' if self.rounds != 1 else ''} in {launches}"


class KnobEffect(Message):
    """What one knob brings in the verdict's launches: the strategy against itself without it, in interleaved rounds."""

    saved_s: float
    """Seconds that the knob saves of the baseline's step; what all save adds up to what the strategy saves."""
    low_s: float
    high_s: float
    """The 95 % interval of the saving."""
    rounds: int
    """Rounds it rests on; 0 where each strategy had launches of its own."""

    def describe_rounds(self) -> str:
        """`, 8 rounds`; empty where there were none."""
        return f", {self.rounds} round{'s' if self.rounds != 1 else ''}" if self.rounds else ""


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
    """What the knob saves (knobs that are shown to help together share it); None where that is not told."""


class DroppedKnob(Message):
    """A knob that was not searched, with its sentence."""

    knob: str
    reason: str
    is_negligible: bool = False
    """Left out because the part of a step that it acts on is too small to matter (Amdahl's law)."""


class RungAdvice(Message):
    """What one rung of the ladder measured."""

    effect: Effect
    changes: Changes
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

    def improves_on(self, answer: Interval | None) -> bool:
        """Whether it is shown to be faster than the script, and looks faster than what is advised, if anything is."""
        if self.gain is None or self.gain.low <= 1.0:
            return False
        return answer is None or (self.gain.ratio > answer.ratio and self.gain.low > answer.low)


_BOUND_WORDS = {
    "communication": "communication",
    "buffers": "the broadcast of the model's buffers",
    "collectives": "collectives beside the gradients' reduction",
    "compute": "computation",
    "input": "data loading",
    "straggler": "one late rank",
    "waiting": "ranks that wait for each other",
    "own_code": "the script's own code",
    "evaluation": "evaluation and saving",
    "garbage": "garbage collection",
    "stalls": "stalls",
    "launch": "host overhead (kernel launches)",
}


def name_bound(bound: str) -> str:
    """Return what people call a thing that may bound a step: `data loading`; its own name where it has no other."""
    return _BOUND_WORDS.get(bound, bound)


class Finding(Message):
    """One thing that may bound a step, with its evidence."""

    bound: str
    """"communication", "buffers", "collectives", "compute", "input", "straggler", "waiting", "own_code", "evaluation",
    "garbage", "stalls" or "launch"."""
    share: float
    """Its share of the baseline's step, 0 to 1."""
    holds: bool
    """Whether it bounds the step: the largest share."""
    evidence: str
    """The figures, in a sentence."""
    knobs_in: tuple[str, ...] = ()
    """Knobs that act on it and were searched."""
    knobs_out: tuple[str, ...] = ()
    """Knobs that act on it and were left out because it is negligible."""


class Diagnosis(Message):
    """Where the time goes, and what that rules out."""

    bound: str
    """The largest finding's; "balanced" where none is large, "unmeasured" where the account cannot tell."""
    sentence: str
    """The finding with its figures."""

    @property
    def title(self) -> str:
        """`Bound by data loading`, `No single bottleneck`, `What bounds it is not known`."""
        others = {"balanced": "No single bottleneck", "unmeasured": "What bounds it is not known"}
        return others.get(self.bound, f"Bound by {name_bound(self.bound)}")

    ceiling_ratio: float | None = None
    """Most that removing exposed communication altogether could bring (throughput ratio)."""
    skew: float = 0.0
    """What the other ranks wait for a late one, as a share of the step; 0 where none is late throughout."""
    flags: tuple[NodeFlag, ...] = ()
    """Nodes that hold the others up, or whose figures cannot be trusted."""
    findings: tuple[Finding, ...] = ()
    """Everything that may bound a step, largest share first."""
    limits: str = ""
    """How far the script as it stands is from what its devices and links could do, in a line; empty where that was not
    measured."""
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
    changes: Changes
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


class LaunchTold(Message):
    """What one launch of the verdict measured."""

    baseline_samples_per_s: float
    strategy_samples_per_s: float
    log_ratio: float
    """ln(throughput of the strategy / of the baseline)."""
    error: float
    """Its standard error within the launch."""


class Advice(Message):
    """The answer to a job."""

    job_id: str
    verdict: Verdict
    headline: str
    """The answer with its figures: `at least 1.8x faster, most likely 3.1x (95 % CI …) with …`."""
    action: Action
    """What to do next, for programs."""
    what_to_do: str
    """The same in one line, for people."""
    continue_s: float | None = None
    """With the action to continue: seconds of further budget that are worth trying. None for other actions."""
    first: str = ""
    """What is worth more than any speed: that ranks train models of their own. Empty where they do not."""
    moods: Moods | None = None
    """The speeds that the script as it stands jumps between: to be said right after the result. None: it has one."""
    launch_noise: float | None = None
    """Standard deviation of ln(the baseline's throughput) between launches; None below two."""
    watch: tuple[str, ...] = ()
    """What is wrong with the script or its data whatever the settings, and would stop or spoil a long training:
    it breaks off by itself, its loss is not finite, its data are uneven."""
    smallest_gain: float | None = None
    """Smallest gain that this budget could find with 80 % power, as a fraction; None where that could not be told."""
    allowed: Allow
    """The highest rung the job allows."""
    certificate: str = ""
    """Sentence: over how many steps and on how many ranks the advised strategy left every bit of the training as it
    is. Empty unless the job allows nothing else and the verdict is change."""
    strategy: dict[str, Value]
    """A value for every knob: the advised strategy (the baseline unless the verdict is change)."""
    baseline: dict[str, Value]
    """A value for every knob: the script as it stands."""
    changes: Changes
    """Knobs that differ; empty unless the verdict is change."""
    own: tuple[OwnKnob, ...] = ()
    """The job's own knobs."""
    rounds_sums: bool = False
    """Gradients of the script as it stands may be added up in 16 bits, where another order is another rounding."""
    keeps_buckets: bool = False
    """DDP's buckets stay in the order in which the script's parameters are defined."""
    provenance: dict[str, Provenance]
    """For every knob."""
    gain: Interval | None = None
    """The confirmed ratio, of `candidate` where the verdict is not change. None when nothing was confirmed. With
    `moods` the ratio is for the time that each took in this job, and the interval the range over them."""
    candidate: Changes = Changes()
    """Knobs of the strategy that the gain belongs to: `changes`, or the best tried where nothing is advised."""
    total_ratio: float | None = None
    """The same ratio over all of the time of the verdict's races, whatever its slow steps are: `gain` weighs whether
    they are the machine's, the script's or a strategy's own. None where nothing was confirmed."""
    launches: tuple[LaunchTold, ...] = ()
    """Each launch that `gain` stands on."""
    baseline_samples_per_s: float
    """Samples per second of the baseline in the confirmation, or else in the probe, by the user's clock."""
    strategy_samples_per_s: float
    """The same under the advised strategy: the baseline's times `gain`."""
    rate_unit: str = "samples/s"
    """What these two count a second: `steps/s` where the runtime finds no samples to count."""
    price_per_hour: float | None = None
    """What all that the training runs on costs an hour, as the job says."""
    joules_before: float | None = None
    """What all devices use for one sample (or step, as `rate_unit` counts), under the baseline; None where no launch
    had it to itself in the verdict, or a device does not tell."""
    joules_after: float | None = None
    """The same under the advised strategy."""
    reasons: tuple[KnobReason, ...] = ()
    left: Changes = Changes()
    """What the search's best strategy set besides `changes`: no difference is shown, so that it is left as it was."""
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

    @cached_property
    def catalogue(self) -> Catalogue:
        return fit_to_script(join_own(self.own), self.rounds_sums, self.keeps_buckets)  # as the job knew them

    def list_offers(self) -> tuple[RungAdvice, ...]:
        """Return the rungs above the allowed one that are worth an offer: faster than what is advised."""
        return tuple(rung for rung in self.list_rungs() if rung.effect.rank > self.allowed.rank and rung.gain)

    def list_rungs(self) -> tuple[RungAdvice, ...]:
        """Return the ladder without the rungs that were raced above the allowed one and are not worth an offer."""
        answer = self.gain if self.changes else None
        return tuple(
            rung
            for rung in self.ladder
            if rung.effect.rank <= self.allowed.rank or not rung.gain or rung.improves_on(answer)
        )


def continue_command(job_id: str, seconds: float | None = None, tune: str = "advisor tune") -> str:
    """Return the command that gives a job more time: `advisor tune --continue ID --minutes 5`."""
    minutes = max(1, round((seconds or CONTINUE_S) / 60))
    return f"{tune} --continue {job_id} --minutes {minutes}"
