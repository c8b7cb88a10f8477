"""What-ifs: what the cost model expects elsewhere. Predictions, never measurements."""

from advisor.protocol.base import Message
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.parameter_servers import ServerSetup
from advisor.protocol.training.workload import SAMPLES_PER_S


class WhatIf(Message):
    """What a forecast is asked for; None keeps what was measured."""

    nodes: int | None = None
    """Nodes, each with as many ranks as measured."""
    bits_per_s: float | None = None
    """What a node's link carries."""
    batch: float = 1.0
    """Batch factor: a multiple of the measured per-rank batch."""


class SetupForecast(Message):
    """A setup of parameter servers, or of none, as the cost model expects it."""

    setup: ServerSetup
    changes: Changes = Changes()
    """What differs from today's."""
    effect: Effect = Effect.EXACT
    """What it may change besides the speed, against today's."""
    largest_share: float | None = None
    """Share of the dense elements on the fullest server; None where servers hold none."""
    step_time_s: float
    """Predicted step time."""
    node_bytes: float = 0.0
    """Memory that the fullest node needs at least: parameters and gradients, without what an optimizer keeps."""
    fits: bool = True
    """Whether a node has that memory, as far as it is known."""


class Forecast(Message):
    """What the cost model expects on another cluster: a prediction, not a measurement."""

    nodes: int
    bits_per_s: float | None = None
    """Bandwidth of a node's link; None keeps the measured one."""
    batch: float = 1.0
    """Batch factor: a multiple of the measured per-rank batch."""
    changes: Changes
    """The strategy that it favours there, against the baseline."""
    step_time_s: float
    """Predicted step time of that strategy."""
    baseline_step_time_s: float
    """Predicted step time of the script as it stands."""
    samples_per_s: float
    """Predicted throughput of that strategy."""
    rate_unit: str = SAMPLES_PER_S
    """What it counts a second: `steps/s` where the runtime finds no samples to count."""
    low: float
    high: float
    """The band of that throughput."""
    scaling_efficiency: float
    """Predicted throughput over that of as many nodes without communication."""
    caveat: str = ""
    """How far this reaches beyond what was measured."""
    setups: tuple[SetupForecast, ...] = ()
    """Of a training with parameter servers: today's setup there, and others. First what learns the same, last what no
    memory holds, each part fastest first. Empty for others."""
