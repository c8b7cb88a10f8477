"""What a race measured, as rank 0 tells it to the agent, and the agent to the server.

Declared here for both ends of the socket, and for the server: its protocol takes these classes as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Dict, List, Optional, Tuple


@dataclass(frozen=True)
class Phases:
    """The account of a step: one rank's seconds in the mean step. No second is in two parts, so they add up to it."""

    data_wait_s: float = 0.0
    """Waiting for the next batch."""
    forward_s: float = 0.0
    """Forward pass."""
    backward_s: float = 0.0
    """Backward pass without exposed communication; with it where that could not be measured."""
    exposed_comm_s: Optional[float] = None
    """Reduction of gradients that computation did not hide, without waiting for other ranks; None: not measured."""
    buffers_s: float = 0.0
    """Broadcast of the model's buffers, which DDP sends from rank 0 before a forward, without waiting."""
    collectives_s: float = 0.0
    """Collectives beside these two (the script's own, SyncBatchNorm's, a sharded model's), without waiting."""
    wait_s: float = 0.0
    """Waiting in reductions and collectives for ranks that come later."""
    optimizer_s: float = 0.0
    """Optimizer step."""
    own_code_s: float = 0.0
    """The script's own code between the phases: loss, clipping, logging, averages of weights."""
    evaluation_s: float = 0.0
    """What steps in which the script evaluates or saves spend there beyond the others, spread over all steps."""
    garbage_s: float = 0.0
    """Full collections of Python's garbage."""
    compiling_s: float = 0.0
    """What the script compiles again in its steps (torch.compile)."""
    stalls_s: float = 0.0
    """What computing in slow steps takes beyond the usual step, spread over all steps."""

    def total_s(self) -> float:
        """Sum of the parts: the mean step."""
        return sum(seconds or 0.0 for _, seconds in self.list_named())

    def list_named(self) -> List[Tuple[str, Optional[float]]]:
        """Every part with its name, in the order of a step, in seconds; None where it was not measured."""
        return [(name, getattr(self, part)) for part, name in PHASE_NAMES.items()]

    def list_shown(self, *others: Phases) -> List[Tuple[str, Optional[float]]]:
        """What a page lists: the usual parts, and those that take time here or in `others`."""
        told = [self, *others]
        return [
            (name, getattr(self, part))
            for part, name in PHASE_NAMES.items()
            if part in USUAL_PHASES or any((getattr(one, part) or 0.0) >= NOTICEABLE_S for one in told)
        ]


PHASE_NAMES = {
    "data_wait_s": "data wait",
    "forward_s": "forward",
    "backward_s": "backward",
    "exposed_comm_s": "exposed communication",
    "buffers_s": "broadcast of buffers",
    "collectives_s": "other collectives",
    "wait_s": "waiting for other ranks",
    "optimizer_s": "optimizer",
    "own_code_s": "own code",
    "evaluation_s": "evaluation and saving",
    "garbage_s": "garbage collection",
    "compiling_s": "compiling",
    "stalls_s": "stalls",
}
"""What people call each part of a step, in the order of a step."""
USUAL_PHASES = frozenset(
    {"data_wait_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "own_code_s"}
)
"""Fields that are shown even where they take no time."""
NOTICEABLE_S = 5e-5
"""Half of the last digit that pages show: less reads as none."""


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for, and what it does meanwhile."""

    rank: int
    waited_s: float
    """What another rank waits for it in the mean step (median over them)."""
    part: str
    """The field of `Phases` in which it exceeds the others most."""
    excess_s: float
    """By how much."""
    saves_beside: float = 0.0
    """Share of its steps in which another thread of it called torch.save, beyond the others' share."""


@dataclass(frozen=True)
class GradientTiming:
    """One parameter's gradient, in the order in which backward produces them."""

    bytes: int
    """Its size."""
    ready_s: float
    """Seconds from the start of backward until it was ready, without communication; median over steps and ranks."""


class LinkLevel(str, Enum):
    """Which ranks a collective was timed between."""

    WORLD = "world"
    """All ranks."""
    NODE = "node"
    """The ranks of one node."""
    ACROSS = "across"
    """One rank of each node."""

    __str__ = str.__str__


@dataclass(frozen=True)
class LinkTiming:
    """An allreduce of one size between the ranks of one level."""

    level: LinkLevel
    ranks: int
    """Ranks that took part in each collective."""
    bytes: int
    """Size of the reduced tensor."""
    seconds: float
    """Median time; the slowest rank's."""
    concurrent: int = 1
    """Collectives of that size that ran side by side, each over a process group of its own; `seconds` covers all."""


@dataclass(frozen=True)
class GradientNoise:
    """Squared norms that the gradient noise scale is made of (McCandlish et al. 2018, arXiv 1812.06162)."""

    small_batch: float
    """Samples behind one rank's gradient."""
    large_batch: float
    """Samples behind the averaged gradient of all ranks."""
    small_square: float
    """Mean squared norm of the ranks' own gradients."""
    large_square: float
    """Mean squared norm of the averaged gradient."""
    steps: int
    """Steps that the means were taken over."""


@dataclass(frozen=True)
class Ceiling:
    """What a step computes, and what the devices could compute in the same time."""

    operations: float
    """Matrix operations of all ranks in one step; 0 where they could not be counted."""
    rate: float
    """Operations a second of all ranks' devices together in one large product of matrices."""
    number_format: str = ""
    """Of most operations, and of that product."""
    refusal: str = ""
    """Clause: why they could not be counted or held against anything; empty where they were."""


@dataclass(frozen=True)
class Calibration:
    """Everything that a calibrating block adds to its result; parts that could not be measured are empty."""

    gradients: Tuple[GradientTiming, ...] = ()
    links: Tuple[LinkTiming, ...] = ()
    noise: Optional[GradientNoise] = None
    ceiling: Optional[Ceiling] = None


@dataclass(frozen=True)
class Place:
    """A line of the script's own code that a rank was seen to stand in."""

    part: str
    """A field of `Phases`, or evaluation, saving or logging: what its own code did there."""
    site: str
    """`train.py:88`; empty where no line of the script's was on the stack."""
    share: float
    """Of the time that was looked at, 0 to 1."""


@dataclass(frozen=True)
class CollectiveCall:
    """Collectives that one line of the script calls, beside DDP's reduction and its broadcast of buffers."""

    kind: str
    """Whose they are: `own` (the script's), `sync_batch_norm`, `sharded` (a sharded model's, or an engine's), or
    `split` (layers that DTensor splits over ranks)."""
    name: str
    """What the line calls: all_reduce, all_gather_object, or `wait` for one that was called before."""
    site: str
    """`train.py:88`; empty where a thread of torch's called."""
    per_step: float
    """Calls in one step, waits not counted."""
    seconds: float
    """Of one step in them, with what it waits for other ranks."""
    bytes: int
    """Largest size of the tensors that one of them was given."""
    bytes_per_step: float = 0.0
    """Of the tensors that all calls of one step were given."""


@dataclass(frozen=True)
class Span:
    """Something that a rank did for a while."""

    name: str
    """A field of `Phases`, or `step` for a whole step, which holds the others."""
    start_s: float
    """Seconds from a moment that all ranks have in common."""
    took_s: float
    """How long it lasted."""


@dataclass(frozen=True)
class RankTimeline:
    """What one rank did, one thing after the other."""

    rank: int
    """Which rank."""
    machine: str
    """The name of its machine."""
    spans: Tuple[Span, ...]
    """In order of their beginnings."""
    zero_s: float = 0.0
    """The moment from which they are told, by its machine's monotonic clock."""


@dataclass(frozen=True)
class StepWork:
    """What the script's own step computes, is given and changes (`RaceRules.weighs`): of the rank with least."""

    operations: Tuple[float, ...]
    """Matrix operations of all ranks outside of backward passes, of each step; empty where they were not counted."""
    number_format: str = ""
    """Of most of them."""
    refusal: str = ""
    """Clause: why they could not be counted; empty where they were."""
    random_numbers: float = 0.0
    """What all ranks' forward passes draw in one step, by dropout and the like; attention's own are not seen."""
    backward_passes: float = 0.0
    """For each forward pass."""
    with_gradient: float = 0.0
    """Share of the parameters, by numbers, whose gradient is there and not all 0 when the optimizer steps."""
    moved: float = 0.0
    """Share of them that a step changes."""
    numbers_with_gradient: float = 0.0
    """Share of single numbers whose gradient is not 0, by some numbers of each parameter."""
    numbers_moved: float = 0.0
    """Share of single numbers that a step changes, by the same ones."""
    gradients_read: float = 0.0
    """Share of the parameters whose gradient an operator reads before the optimizer steps, as clipping does."""
    clipped: float = 0.0
    """Share of them whose gradient it also multiplies or bounds."""
    kept_beside: float = 0.0
    """Share of them for which a step writes something of the same shape that stays, as an average of the weights."""
    repeated: float = 0.0
    """Share of the batches looked at that some rank's model had been given before, as they are or with some noise."""
    variety: float = 0.0
    """How far a number that a rank's model is given varies from batch to batch, as a share of how far all these numbers
    vary; 0 where batches of one size are too few."""
    ranks_apart: bool = False
    """Ranks that reduce a model together hold different parameters."""


@dataclass(frozen=True)
class BlockResult:
    """What the ranks measured in one block."""

    steps: int
    """Timed steps."""
    step_time_s: Tuple[float, ...]
    """Time of each timed step: the mean over the ranks, so stretched that all together are `wall_s`."""
    samples_per_step: float
    """Samples of all ranks per step."""
    wall_s: float
    """Wall time of the timed steps, of the rank for which they took longest."""
    period: int = 1
    """Steps after which behaviour repeats (local SGD's k)."""
    excluded_steps: int = 0
    """Timed steps left out: the script did something else in them (evaluation, a checkpoint)."""
    warmup_steps: int = 0
    """Steps before the timed ones."""
    segments: Tuple[int, ...] = ()
    """Timed steps in each cycle of its race, in order: together `steps`. Empty for a block that was measured alone."""
    samples: float = 0
    """Samples of all ranks in the timed steps."""
    step_samples: Tuple[float, ...] = ()
    """Those of each timed step, where they differ from step to step; empty elsewhere."""
    per_rank_step_time_s: Tuple[float, ...] = ()
    """Each rank's mean step time."""
    per_rank_work_s: Tuple[float, ...] = ()
    """Each rank's mean step without what it waits for others. Ranks that wait for each other take equally long steps,
    so that a slow one shows here."""
    phases: Phases = Phases()
    """The account of one rank over all timed steps: of the late one, else of one that waits as long as is usual."""
    phases_rank: int = 0
    """Which rank that is."""
    per_rank_phases: Tuple[Phases, ...] = ()
    """Every rank's account; empty where there are more than 64 ranks."""
    late: Optional[LateRank] = None
    """The rank that the others wait for; None where none is late in every step, or where waiting was not measured."""
    saves_beside: float = 0.0
    """Share of the timed steps in which a thread beside the training called torch.save, of the rank with most."""
    losses: Tuple[float, ...] = ()
    """Mean over the ranks of each timed step's loss, where the script's backward pass showed one."""
    loss_at_start: Tuple[float, ...] = ()
    """Loss of each batch of the race's loss check under the state that all segments began from."""
    loss_checks: Tuple[Tuple[float, ...], ...] = ()
    """Loss of each of the same batches after each segment, under the ranks' averaged parameters."""
    diverged: bool = False
    """A loss was not finite."""
    nonfinite_losses: int = 0
    """How many of the timed steps and of the loss checks had a loss that was not finite, on any rank. Whether the
    strategy or the script is to blame, only the baseline's own tell."""
    peak_memory_bytes: int = 0
    """Largest peak of any rank in this block (device memory on GPUs, resident memory on CPUs)."""
    bucket_bytes: Tuple[int, ...] = ()
    """Sizes of DDP's buckets as its own log states them."""
    consumed: Dict[str, str] = field(default_factory=dict)
    """Knob -> evidence that the override was in force."""
    not_consumed: Dict[str, str] = field(default_factory=dict)
    """Knob -> why nothing consumed the override."""
    no_effect: Dict[str, str] = field(default_factory=dict)
    """Knob -> why its override, though in force, leaves everything as the baseline has it (the same buckets)."""
    relaunch_needed: str = ""
    """Sentence when the overrides cannot be switched in place: measure it again in a session launched with them."""
    script_ended: bool = False
    """The script ended during this block."""
    switch_s: float = 0.0
    """Time the switch took."""
    given_up: bool = False
    """It left its race early: its steps were surely too slow (`RaceRules.give_up_ratio`)."""
    same_as: str = ""
    """Block of the arm that turned out to be the same plan in force; this one was not timed then."""
    drifted: str = ""
    """Sentence when the ranks' parameters were equal before the race and not after it: nothing of it counts."""
    bit_steps: int = 0
    """Steps from one state after which parameters, buffers and optimizer states were bit for bit the first arm's on
    every rank (`RaceRules.bit_check_steps`); 0 where they were not, or nothing was checked."""
    bits_differ: str = ""
    """Sentence why a check that was asked for found no such equality."""
    calibration: Optional[Calibration] = None
    """What a calibrating block measured besides."""
    work: Optional[StepWork] = None
    """What a step computes and changes; None where nothing asked, or where the script ended before."""
    places: Tuple[Place, ...] = ()
    """Where the rank whose account this is stood (`RaceRules.looks_closely`), most of the time first; else empty."""
    room_bytes: int = 0
    """What stayed free of its device's memory at the peak, or a rank's part of free host memory, of the rank with least
    (`RaceRules.looks_closely`); 0 where unknown."""
    collective_calls: Tuple[CollectiveCall, ...] = ()
    """Collectives by the lines that call them (`RaceRules.looks_closely`), the dearest first; else empty."""
    timelines: Tuple[RankTimeline, ...] = ()
    """All ranks' steps on one timeline (`RaceRules.looks_closely`); else empty."""
