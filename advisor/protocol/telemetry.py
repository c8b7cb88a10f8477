"""Telemetry: what an agent samples on its node while a session runs."""

from pydantic import Field

from advisor.protocol.base import Message


class DeviceSample(Message):
    """One device at one moment."""

    index: int
    busy: float
    """Share of the sampling interval in which any kernel ran, 0 to 1 (NVML); waiting in NCCL counts as busy."""
    memory_bytes: int
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    throttled: str = ""
    """Reasons for reduced clocks, empty when there are none."""


class TelemetrySample(Message):
    """One node at one moment."""

    age_s: float
    """Seconds between the sample and the message that carries it: nobody ships absolute times."""
    cpu: float
    """CPU share of the whole node, 0 to 1."""
    session_cpu: float = 0.0
    """CPU share of the session's own processes, 0 to 1 of the whole node."""
    memory_bytes: int = 0
    """Memory used on the node."""
    devices: tuple[DeviceSample, ...] = ()
    """Devices of the session; empty on CPU nodes."""
    network_sent_bytes_per_s: float = 0.0
    network_received_bytes_per_s: float = 0.0


class TelemetryPoint(Message):
    """A stored sample, placed in the session's time."""

    agent: str
    offset_s: float
    """Seconds since the session was created."""
    sample: TelemetrySample


class TelemetryBatch(Message):
    """Samples since the last beat."""

    samples: tuple[TelemetrySample, ...] = Field(default=(), max_length=500)
