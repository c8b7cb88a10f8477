"""What each node did while a trial was measured, in words."""

from advisor.dashboard import formats
from advisor.protocol.measured.telemetry import DeviceTelemetry, Spread


def spread(of: Spread | None) -> str:
    """Return a share over several samples: `93 % (most 99 %)`; a dash where no node reported it."""
    if of is None:
        return formats.NO_VALUE
    return f"{formats.percent(of.mean)} (most {formats.percent(of.max)})"


def describe_traffic(device: DeviceTelemetry) -> str:
    """Return what went over a device's links: `PCIe 1.2 GB/s`."""
    rates = {"PCIe": device.pcie_bytes_per_s, "NVLink": device.nvlink_bytes_per_s}
    told = [f"{name} {formats.data_rate(rate)}" for name, rate in rates.items() if rate is not None]
    return ", ".join(told) or formats.NO_VALUE


def describe_throttling(device: DeviceTelemetry) -> str:
    """Return why its clocks were reduced, with how often; "" where they were not."""
    return ", ".join(f"{reason} {formats.percent(share)}" for reason, share in device.throttled.items())
