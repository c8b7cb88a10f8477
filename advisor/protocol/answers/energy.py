"""What a training uses and costs: joules of its devices, and money, for each sample.

Pure functions. Energy is NVML's own counter, which devices from Volta on have; where there is none it is the mean of
the power that they told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.telemetry import DeviceSample, TelemetrySample

Window = tuple[float, float]
"""From when to when, in seconds of a machine's monotonic clock."""
_S_PER_HOUR, _MANY_SAMPLES = 3600.0, 1e6


@dataclass(frozen=True)
class TimedSample:
    """A sample of the node."""

    at_s: float
    """When, by its monotonic clock."""
    sample: TelemetrySample


def find_window(result: BlockResult) -> Window | None:
    """Return when the first machine's timed steps began and ended; None where nothing tells."""
    if not result.timelines or not result.timelines[0].spans:
        return None
    first = result.timelines[0]
    ends = [span.start_s + span.took_s for span in first.spans]
    return first.zero_s + first.spans[0].start_s, first.zero_s + max(ends)


def measure_power(samples: Sequence[TimedSample], window: Window | None) -> float | None:
    """Return the mean power of all devices in the window, in watts; None where one of them does not tell it."""
    if window is None:
        return None
    indices = {device.index for one in samples for device in one.sample.devices}
    found = [_measure_device(_list_device(samples, index), window) for index in sorted(indices)]
    known = [power for power in found if power is not None]
    return sum(known) if known and len(known) == len(found) else None


def _list_device(samples: Sequence[TimedSample], index: int) -> list[tuple[float, DeviceSample]]:
    return [(one.at_s, device) for one in samples for device in one.sample.devices if device.index == index]


def _measure_device(told: Sequence[tuple[float, DeviceSample]], window: Window) -> float | None:
    counted = [(at_s, device.energy_j) for at_s, device in told if device.energy_j is not None]
    # The counter at the two samples that are nearest to the window's ends, none of them twice.
    if len(counted) >= 2:
        first, last = (min(counted, key=lambda one: abs(one[0] - end_s)) for end_s in window)
        if last[0] > first[0] and last[1] >= first[1]:
            return (last[1] - first[1]) / (last[0] - first[0])
    inside = [
        device.power_w
        for at_s, device in told
        if device.power_w is not None and window[0] <= at_s <= window[1]
    ]
    return fmean(inside) if inside else None


def say_costs(rate: float, unit: str, power_w: float | None, price_per_hour: float | None) -> str:
    """Return `612 W, 4.2 J a sample · 1.11 for a million samples at 2.5 an hour`; "" where nothing is known.

    `rate` is samples (or steps, as `unit` says) a second of all ranks.
    """
    told = []
    if power_w is not None and rate > 0:
        told.append(f"{power_w:.0f} W, {spell_joules(power_w / rate, unit)}")
    if price_per_hour is not None and rate > 0:
        told.append(f"{spell_price(rate, unit, price_per_hour)} at {price_per_hour:g} an hour")
    return " · ".join(told)


def spell_joules(joules: float, unit: str) -> str:
    """Return `4.2 J a sample`."""
    return f"{joules:.3g} J a {unit.partition('/')[0].removesuffix('s')}"


def spell_price(rate: float, unit: str, price_per_hour: float) -> str:
    """Return `1.11 for a million samples`, of a training at that rate."""
    spent = price_per_hour / _S_PER_HOUR / rate * _MANY_SAMPLES
    return f"{spent:.3g} for a million {unit.partition('/')[0]}"
