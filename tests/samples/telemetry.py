"""Made-up telemetry: of nodes and devices."""

import math
from collections.abc import Sequence

from advisor.protocol.measured.telemetry import (
    DeviceSample,
    DeviceTelemetry,
    FlagKind,
    NodeFlag,
    NodeTelemetry,
    Spread,
    TelemetryPoint,
    TelemetrySample,
)
from advisor.tuning.measure.utilisation import MOST_STRETCHES

_DEVICES = 8
_STRETCH_S = 5.0
_HOT = ("node02", 5)


def make_node_telemetry(agents: Sequence[str]) -> tuple[NodeTelemetry, ...]:
    """Return what those nodes did in a block; one of their GPUs is too hot."""
    return tuple(
        NodeTelemetry(
            agent=agent, samples=12, cpu=_spread(0.11), session_cpu=_spread(0.09), memory_bytes=212 * 2**30,
            network_bytes_per_s=9.1e9, devices=tuple(_make_device(agent, index) for index in range(_DEVICES)),
        )
        for agent in agents
    )  # fmt: skip


def make_points(agents: Sequence[str]) -> tuple[TelemetryPoint, ...]:
    """Return a session's samples: a launch, blocks with a pause between them, a gap where NVML did not answer."""
    return tuple(
        TelemetryPoint(
            agent=agent, offset_s=_STRETCH_S * (stretch + 0.5),
            sample=TelemetrySample(
                age_s=0.0, cpu=0.11, session_cpu=0.09, memory_bytes=212 * 2**30,
                devices=tuple(
                    DeviceSample(
                        index=index, busy=0.97, memory_bytes=101 * 2**30, power_w=612.0, sm_active=share,
                        throttled="HwThermalSlowdown" if (agent, index) == _HOT and stretch > 60 else "",
                    )
                    for index in range(_DEVICES)
                    if (share := _share(agent, index, stretch)) is not None
                ),
            ),
        )
        for agent in agents
        for stretch in range(MOST_STRETCHES)
    )  # fmt: skip


def make_flag(agent: str) -> NodeFlag:
    """Return what speaks against the node of the GPU that is too hot."""
    return NodeFlag(
        agent=agent,
        kind=FlagKind.THROTTLED,
        sentence=(
            f"GPU {_HOT[1]} of {agent} ran with reduced clocks in 85 % of the samples: HwThermalSlowdown (1275 MHz, "
            "1980 MHz on the other GPUs). Look at its cooling and its power supply."
        ),
    )


def _make_device(agent: str, index: int) -> DeviceTelemetry:
    is_hot = (agent, index) == _HOT
    return DeviceTelemetry(
        index=index, busy=_spread(0.97), sm_active=_spread(0.71), tensor_active=0.38, memory_bytes=101 * 2**30,
        power_w=_spread(450.0 if is_hot else 612.0), sm_clock_mhz=1275.0 if is_hot else 1980.0,
        temperature_c=88.0 if is_hot else 61.0, throttled={"HwThermalSlowdown": 0.85} if is_hot else {},
        pcie_bytes_per_s=2.1e9, nvlink_bytes_per_s=88e9, ecc_uncorrected=0,
    )  # fmt: skip


def _share(agent: str, index: int, stretch: int) -> float | None:
    if agent == _HOT[0] and 40 <= stretch < 43:
        return None
    if stretch < 4 or stretch % 22 == 0:
        return 0.02
    return 0.72 + 0.06 * math.sin(stretch * 1.7 + index) - (0.1 if (agent, index) == _HOT else 0.0)


def _spread(value: float) -> Spread:
    return Spread(mean=value, median=value, max=min(1.0, value * 1.08) if value <= 1 else value * 1.08)
