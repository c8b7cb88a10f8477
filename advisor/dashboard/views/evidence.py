"""Knobs, strategies, gains, findings, and what each node did while a trial was measured, in words."""

from collections.abc import Mapping

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip
from advisor.protocol.answers.advice import Finding, Interval
from advisor.protocol.base import Value
from advisor.protocol.gains import spell_likely, spell_range
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.measured.telemetry import DeviceTelemetry, Spread


def show_knob(name: str, value: Value | None) -> str:
    """Return a knob's value with its unit."""
    knob = CATALOGUE.get(name)
    return formats.knob_value(value, knob.unit if knob and not isinstance(value, str) else "")


def describe_changes(changes: Mapping[str, Value]) -> str:
    """Return changes in one line; the baseline's own words when there is none."""
    if not changes:
        return "the script as it stands"
    return ", ".join(f"{name} {show_knob(name, value)}" for name, value in changes.items())


def likely(gain: Interval) -> str:
    """Return the likeliest gain: `+16.1 %`, `3.1x`."""
    return spell_likely(gain.ratio, gain.low, gain.high)


def interval(gain: Interval) -> str:
    """Return what a gain lies between: `+13.9 … +18.2 %`; empty where that says nothing."""
    return spell_range(gain.ratio, gain.low, gain.high) if gain.is_known else ""


def judge_finding(finding: Finding) -> Chip:
    """Return the chip that says whether it bounds the step."""
    if finding.holds:
        return Chip("caution", "alert", "bounds the step")
    return Chip("muted", "check", "does not bound it")


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
