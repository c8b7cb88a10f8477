"""Telemetry: what an agent samples on its node while a session runs, and its summaries."""

from enum import StrEnum

from pydantic import Field

from advisor.protocol.base import Message


class DeviceSample(Message):
    """One device at one moment."""

    index: int
    busy: float
    """Share of the sampling interval in which any kernel ran, 0 to 1 (NVML); waiting in NCCL counts as busy."""
    memory_bytes: int
    power_w: float | None = None
    energy_j: float | None = None
    """What it has used since the driver was loaded, by its own counter (Volta and newer)."""
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttled: str = ""
    """Reasons for reduced clocks, empty when there are none."""
    sm_active: float | None = None
    """Share of the SMs that had work, 0 to 1, averaged since the sample before (GPM: Hopper and newer)."""
    tensor_active: float | None = None
    """Share of the tensor cores that worked, 0 to 1, averaged since the sample before (GPM)."""
    pcie_sent_bytes_per_s: float | None = None
    """Bytes that the device sent over PCIe; without GPM in one sample a second of one device in turn."""
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    """Bytes that the device sent over all its NVLinks."""
    nvlink_received_bytes_per_s: float | None = None
    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""


class DeviceError(Message):
    """A critical error that NVML told."""

    device: int
    """Its index; -1 when the device can no longer say."""
    code: int
    """NVIDIA's Xid number."""


class TelemetrySample(Message):
    """One node at one moment."""

    age_s: float
    """Seconds between the sample and the message that carries it: absolute times are never sent."""
    cpu: float
    """CPU share of the whole node, 0 to 1."""
    session_cpu: float = 0.0
    """CPU share of the session's own processes, 0 to 1 of the whole node."""
    memory_bytes: int = 0
    """Memory used on the node."""
    devices: tuple[DeviceSample, ...] = ()
    """Devices of the session; empty on CPU nodes, and while NVML does not answer."""
    gap_s: float = 0.0
    """Seconds for which NVML has not answered; 0 while it does, and on CPU nodes."""
    errors: tuple[DeviceError, ...] = ()
    """Critical errors of the devices since the sample before."""
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


class Spread(Message):
    """One figure over several samples."""

    mean: float
    median: float
    max: float


class DeviceTelemetry(Message):
    """One device over a stretch of time; None where it did not tell the figure."""

    index: int
    busy: Spread
    """Share of time in which any kernel ran, 0 to 1."""
    sm_active: Spread | None = None
    """Share of the SMs that had work, 0 to 1."""
    tensor_active: float | None = None
    """Mean share of the tensor cores that worked, 0 to 1."""
    memory_bytes: int
    """Largest."""
    power_w: Spread | None = None
    sm_clock_mhz: float | None = None
    """Median."""
    temperature_c: float | None = None
    """Highest."""
    throttled: dict[str, float] = Field(default_factory=dict)
    """Reason for reduced clocks -> share of the samples that had it, 0 to 1."""
    pcie_bytes_per_s: float | None = None
    """Mean, sent and received together."""
    nvlink_bytes_per_s: float | None = None
    """Mean, sent and received together."""
    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since the driver was loaded."""


class NodeTelemetry(Message):
    """One node over a stretch of time."""

    agent: str
    samples: int
    """Samples that this rests on."""
    cpu: Spread
    """CPU share of the whole node, 0 to 1."""
    session_cpu: Spread
    """CPU share of the session's own processes, 0 to 1 of the whole node."""
    memory_bytes: int
    """Most memory used on the node."""
    network_bytes_per_s: float
    """Mean over all its links, sent and received together."""
    devices: tuple[DeviceTelemetry, ...] = ()
    gap_s: float = 0.0
    """Longest time for which NVML did not answer, in seconds."""
    power_w: float | None = None
    """Mean power of all its devices over the timed steps, in watts: by their energy counters, else by the power that
    they tell. None where one tells neither, and where several strategies took turns."""
    errors: tuple[DeviceError, ...] = ()


class TelemetrySeries(Message):
    """One device (or a node's CPUs) over a session, in equal stretches of time; None where there is no sample."""

    agent: str
    device: int | None = None
    """None: the node's CPUs, as far as the session uses them."""
    measure: str
    """What `share` is: "sm" (SMs with work), "busy" (any kernel running) or "cpu"."""
    share: tuple[float | None, ...]
    """Mean, 0 to 1."""
    power_w: tuple[float | None, ...] = ()
    """Mean."""
    throttled: tuple[bool, ...] = ()
    """Whether any sample of the stretch had reduced clocks."""


class SessionTelemetry(Message):
    """A session's telemetry, thinned to what a page can show."""

    session_id: str = ""
    """Empty when the job has had no session."""
    stretch_s: float = 0.0
    """Length of a stretch of time, in seconds; the first one starts with the session."""
    series: tuple[TelemetrySeries, ...] = ()
    nodes: tuple[NodeTelemetry, ...] = ()
    """Each node over the whole session."""


class FlagKind(StrEnum):
    """What is wrong with a node."""

    THROTTLED = "throttled"
    SLOW_CLOCK = "slow_clock"
    STRAGGLER = "straggler"
    UNOBSERVED = "unobserved"
    """NVML did not answer for a while."""


class NodeFlag(Message):
    """A node that holds the others up, or whose figures cannot be trusted."""

    agent: str
    kind: FlagKind
    sentence: str
    """What was seen, with its figures, and what to do."""
    rank: int | None = None
    """The rank that lags; None for what is no straggler."""
