"""Where the time of a step goes: one account for a rank, whose parts add up to its mean step."""

from advisor.protocol.base import Message


class Phases(Message):
    """The account of a step: one rank's seconds in the mean step. No second is in two parts, so they add up to it."""

    data_wait_s: float = 0.0
    """Waiting for the next batch."""
    forward_s: float = 0.0
    """Forward pass."""
    backward_s: float = 0.0
    """Backward pass without exposed communication; with it where that could not be measured."""
    exposed_comm_s: float | None = None
    """Reduction of gradients that computation did not hide, without waiting for other ranks; None: not measured."""
    collectives_s: float = 0.0
    """Collectives beside that reduction (the script's own, SyncBatchNorm's, a sharded model's), without waiting."""
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
    stalls_s: float = 0.0
    """What computing in slow steps takes beyond the usual step, spread over all steps."""

    def total_s(self) -> float:
        """Sum of the parts: the mean step."""
        return sum(seconds or 0.0 for _, seconds in self.list_named())

    def list_named(self) -> list[tuple[str, float | None]]:
        """Return every part with its name, in the order of a step, in seconds; None where it was not measured."""
        return [(name, getattr(self, field)) for field, name in PHASE_NAMES.items()]

    def list_shown(self, *others: "Phases") -> list[tuple[str, float | None]]:
        """Return what a page lists: the usual parts, and those that take time here or in `others`."""
        told = [self, *others]
        return [
            (name, getattr(self, field))
            for field, name in PHASE_NAMES.items()
            if field in USUAL_PHASES or any((getattr(one, field) or 0.0) >= NOTICEABLE_S for one in told)
        ]


PHASE_NAMES = {
    "data_wait_s": "data wait",
    "forward_s": "forward",
    "backward_s": "backward",
    "exposed_comm_s": "exposed communication",
    "collectives_s": "other collectives",
    "wait_s": "waiting for other ranks",
    "optimizer_s": "optimizer",
    "own_code_s": "own code",
    "evaluation_s": "evaluation and saving",
    "garbage_s": "garbage collection",
    "stalls_s": "stalls",
}
"""What people call each part of a step, in the order of a step."""
USUAL_PHASES = frozenset(
    {"data_wait_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "own_code_s"}
)
"""Fields that are shown even where they take no time."""
NOTICEABLE_S = 5e-5
"""Half of the last digit that pages show: less reads as none."""


class LateRank(Message):
    """The rank that the others wait for, and what it does meanwhile."""

    rank: int
    waited_s: float
    """What another rank waits for it in the mean step (median over them)."""
    part: str
    """The field of `Phases` in which it exceeds the others most."""
    excess_s: float
    """By how much."""
