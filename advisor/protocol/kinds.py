"""The words that a knob is described in: where it stands, what it may change, when a value can take effect."""

from enum import StrEnum


class Place(StrEnum):
    """Where Fleet keeps the knob."""

    STRATEGY = "strategy"
    BUILD_STRATEGY = "build_strategy"
    EXECUTION_STRATEGY = "execution_strategy"
    ENVIRONMENT = "environment"
    DATA_READING = "data_reading"
    """Not in the strategy itself: the documents read data with DALI."""
    PSERVER = "pserver"
    OWN = "own"
    """Not Fleet's: a knob of the user's own."""


class Effect(StrEnum):
    """What a knob may change besides the speed; ordered from harmless to risky."""

    EXACT = "exact"
    """The same mathematics."""
    NUMERIC = "numeric"
    """The same optimisation in other rounding."""
    CONVERGENCE = "convergence"
    """Another optimisation."""

    @property
    def rank(self) -> int:
        """0 for exact, 1 for numeric, 2 for convergence."""
        return list(Effect).index(self)


class Allow(StrEnum):
    """What a job lets its advice change besides the speed; ordered from nothing at all to risky."""

    BITWISE = "bitwise"
    """Nothing: exact knobs, and of their strategies only those that left every bit of the training as it is."""
    EXACT = "exact"
    NUMERIC = "numeric"
    CONVERGENCE = "convergence"

    @property
    def rank(self) -> int:
        """That of the highest effect that is allowed."""
        return 0 if self is Allow.BITWISE else Effect(self.value).rank


class Switch(StrEnum):
    """When a new value can take effect."""

    HOT = "hot"
    """Between two steps of a running session."""
    SLOW = "slow"
    """Between two steps of a running session, after work that takes about as long as a launch (a compilation)."""
    COLD = "cold"
    """Only in new processes."""


class Part(StrEnum):
    """The part of a step that a knob acts on: where that part is negligible, the knob cannot matter."""

    COMMUNICATION = "communication"
    """Communication that computation does not hide."""
    BUFFERS = "buffers"
    """Rank 0's broadcast of the model's buffers."""
    COMPUTATION = "computation"
    """Forward, backward and optimizer."""
    OPTIMIZER = "optimizer"
    """The optimizer alone."""
    INPUT = "input"
    """Waiting for the next batch."""
    STEP = "step"
    """Anything: it is never ruled out by a breakdown."""


class Scale(StrEnum):
    """How distances along a numeric knob are felt."""

    LINEAR = "linear"
    LOG = "log"
