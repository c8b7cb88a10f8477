"""Real trainings under an advised strategy, as `advisor run --watch` reports them to the server."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from advisor.protocol.base import Message

MOST_POINTS = 240
"""Windows kept of a run, the latest: two hours at half a minute each."""


class RunEvent(StrEnum):
    """What a window changed."""

    BELOW = "below"
    """Throughput has left the advised interval downwards."""
    RECOVERED = "recovered"
    """It is back."""


class RunReport(Message):
    """`PUT /jobs/{id}/runs/{run}`: the latest window of a real training's steps."""

    host: str = Field(max_length=255)
    """Host of its first rank."""
    ranks: int = Field(ge=1)
    step: int = Field(ge=0)
    """Steps since it began."""
    step_s: float = Field(gt=0, allow_inf_nan=False)
    """Seconds of a step, evaluations and checkpoints left out."""
    samples_per_s: float = Field(ge=0, allow_inf_nan=False)
    """Of all ranks."""
    low: float | None = Field(default=None, allow_inf_nan=False)
    """Samples a second below which it is told; None while nothing is known."""
    event: RunEvent | None = None
    sentence: str = Field(default="", max_length=2000)
    """With an event: what happened, and the likely cause."""


class RunPoint(Message):
    """One window."""

    at: datetime
    step: int
    samples_per_s: float


class ProductionRun(Message):
    """A real training that reports its steps."""

    id: str
    host: str
    ranks: int
    began_at: datetime
    """Its first report."""
    reported_at: datetime
    """Its latest one."""
    step: int
    samples_per_s: float
    low: float | None
    is_below: bool = False
    sentence: str = ""
    """What was last told of it."""
    recent: tuple[RunPoint, ...] = ()
    """Its latest windows, oldest first."""


class RunPage(Message):
    """The trainings that reported for a job, the latest report first."""

    items: tuple[ProductionRun, ...]
