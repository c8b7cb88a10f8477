"""What each node did while a trial was measured, as the trial's page shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.protocol.measured.telemetry import DeviceTelemetry, NodeTelemetry, Spread


@dataclass(frozen=True)
class DeviceLine:
    """One device, or the CPUs of a node that has none."""

    place: str
    busy: str
    sm_active: str
    tensor_active: str
    memory: str
    power: str
    clock: str
    traffic: str
    """PCIe and NVLink; the network on a node without devices."""
    throttled: str


def view_devices(nodes: Sequence[NodeTelemetry]) -> tuple[DeviceLine, ...]:
    """Build the rows, node by node."""
    return tuple(line for node in nodes for line in _view_node(node))


def _view_node(node: NodeTelemetry) -> list[DeviceLine]:
    agent = node.agent
    if node.devices:
        return [_view_device(agent, device) for device in node.devices]
    return [
        DeviceLine(
            place=f"{agent} CPUs", busy=_share(node.session_cpu), sm_active=formats.NO_VALUE,
            tensor_active=formats.NO_VALUE, memory=formats.size(node.memory_bytes), power=formats.NO_VALUE,
            clock=formats.NO_VALUE, traffic=f"network {_rate(node.network_bytes_per_s)}", throttled="",
        )
    ]  # fmt: skip


def _view_device(agent: str, device: DeviceTelemetry) -> DeviceLine:
    traffic = [
        f"{name} {_rate(rate)}"
        for name, rate in (("PCIe", device.pcie_bytes_per_s), ("NVLink", device.nvlink_bytes_per_s))
        if rate is not None
    ]
    reasons = [f"{name} {formats.percent(part)}" for name, part in device.throttled.items()]
    return DeviceLine(
        place=f"{agent} GPU {device.index}",
        busy=_share(device.busy),
        sm_active=_share(device.sm_active),
        tensor_active=formats.percent(device.tensor_active),
        memory=formats.size(device.memory_bytes),
        power=f"{device.power_w.mean:.0f} W" if device.power_w else formats.NO_VALUE,
        clock=f"{device.sm_clock_mhz:.0f} MHz" if device.sm_clock_mhz else formats.NO_VALUE,
        traffic=", ".join(traffic) or formats.NO_VALUE,
        throttled=", ".join(reasons),
    )


def _share(spread: Spread | None) -> str:
    if spread is None:
        return formats.NO_VALUE
    return f"{formats.percent(spread.mean)} (most {formats.percent(spread.max)})"


def _rate(bytes_per_s: float) -> str:
    return f"{formats.size(bytes_per_s)}/s"
