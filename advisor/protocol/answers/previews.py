"""What a job would do, told before it is submitted: what would be searched, and within which limits."""

from advisor.protocol.answers.advice import DroppedKnob
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Message, Value
from advisor.protocol.kinds import Effect


class PlannedKnob(Message):
    """A knob that the job may vary. Whether it can matter for the script is known after its first launch only."""

    knob: str
    effect: Effect
    """What it may change besides the speed."""
    for_verdict: bool
    """Whether the verdict may stand on it; otherwise it is measured to show what a higher rung would bring."""
    values: tuple[Value, ...] = ()
    """The values to try, beside the script's own; empty where they depend on what the first launch shows."""
    low: int | float | None = None
    """Smallest value that can be tried, where the values are not known yet."""
    high: int | float | None = None
    """Largest value that can be tried, where the values are not known yet."""
    unit: str = ""
    """Unit of the values."""


class PlanPreview(Message):
    """What a job would do, as far as that is known before anything is measured."""

    knobs: tuple[PlannedKnob, ...]
    """What would be searched."""
    dropped: tuple[DroppedKnob, ...]
    """What would not be searched, each with its reason."""
    most_trials: int
    """Strategies that the search tries at most."""
    likely_trials: int
    """Strategies for which the time suffices where launches take as long as they usually do and every arm of a race
    lasts `measurement.block_s`."""
    most_seconds: float
    """Wall time of all sessions together at most, in seconds."""
    most_device_hours: float | None = None
    """Device-hours (ranks on CPU nodes) at most; None where the job sets no limit and its devices are not known yet."""
    smallest_gain: float | None = None
    """Smallest gain that the budget can find, as a fraction of the throughput; None while the noise is not known."""
    unknown: tuple[str, ...] = ()
    """What cannot be said before anything is measured, each as a sentence with when it will be known."""


class JobPreview(Job):
    """The job that submitting a specification would make, without an id, and what it would do."""

    plan: PlanPreview
    """What it would do."""
