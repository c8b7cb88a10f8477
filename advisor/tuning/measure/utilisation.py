"""Telemetry summed up: what each node did in a stretch of time, and series short enough for a page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from advisor.protocol.answers.energy import TimedSample, Window, measure_power
from advisor.protocol.measured.telemetry import (
    DeviceSample,
    DeviceTelemetry,
    NodeTelemetry,
    SessionTelemetry,
    Spread,
    TelemetryPoint,
    TelemetrySample,
    TelemetrySeries,
)
from advisor.protocol.measured.trials import Block

MOST_STRETCHES = 120
"""Points of a series."""
_TAKEN = 0.2
"""Share of a node's processors from which the work of others is named for how slow or uneven a training is."""


def measure_utilisation(points: Sequence[TelemetryPoint]) -> float | None:
    """Return the mean busy share of the devices, or the CPU share of the session on nodes without; 0 to 1.

    None without a sample that tells: while NVML does not answer nothing is known.
    """
    shares = [_busy_share(point.sample) for point in points if point.sample.gap_s == 0]
    return fmean(shares) if shares else None


def summarise_nodes(
    points: Sequence[TelemetryPoint], timed: Window | None = None
) -> tuple[NodeTelemetry, ...]:
    """Return what each node did, by name; `timed` is when one strategy's steps were, in the points' own time."""
    samples: dict[str, list[TimedSample]] = {}
    for point in points:
        samples.setdefault(point.agent, []).append(TimedSample(point.offset_s, point.sample))
    return tuple(
        _summarise_node(agent, [one.sample for one in samples[agent]]).model_copy(
            update={"power_w": measure_power(samples[agent], timed)}
        )
        for agent in sorted(samples)
    )


def measure_joules(blocks: Sequence[Block], nodes: int) -> float | None:
    """Return what one sample took of all devices' energy in these blocks, in joules.

    None without blocks, and where one of them was not measured by itself or a node's devices do not tell.
    """
    found = []
    for block in blocks:
        powers = [node.power_w for node in block.telemetry if node.power_w is not None]
        if block.summary is None or not block.summary.samples_per_s or len(powers) < nodes:
            return None
        found.append(sum(powers) / block.summary.samples_per_s)
    return fmean(found) if found else None


def make_series(
    session_id: str, points: Sequence[TelemetryPoint], most_stretches: int = MOST_STRETCHES
) -> SessionTelemetry:
    """Return a session's telemetry in at most that many stretches of equal length."""
    if not points:
        return SessionTelemetry(session_id=session_id)
    stretch_s = max(1.0, (max(point.offset_s for point in points) + 1e-6) / most_stretches)
    count = int(max(point.offset_s for point in points) / stretch_s) + 1
    series: list[TelemetrySeries] = []
    for agent in sorted({point.agent for point in points}):
        stretches: list[list[TelemetrySample]] = [[] for _ in range(count)]
        for point in points:
            if point.agent == agent:
                stretches[int(point.offset_s / stretch_s)].append(point.sample)
        indices = sorted({d.index for samples in stretches for sample in samples for d in sample.devices})
        series += [_device_series(agent, index, stretches) for index in indices]
        if not indices:
            shares = tuple(_mean(sample.session_cpu for sample in samples) for samples in stretches)
            series.append(TelemetrySeries(agent=agent, measure="cpu", share=shares))
    return SessionTelemetry(
        session_id=session_id, stretch_s=stretch_s, series=tuple(series), nodes=summarise_nodes(points)
    )


def _device_series(agent: str, index: int, stretches: Sequence[Sequence[TelemetrySample]]) -> TelemetrySeries:
    found = [[d for sample in samples for d in sample.devices if d.index == index] for samples in stretches]
    # The first sample of every card comes without GPM's figures.
    has_gpm = any(device.sm_active is not None for devices in found for device in devices)
    return TelemetrySeries(
        agent=agent,
        device=index,
        measure="sm" if has_gpm else "busy",
        share=tuple(_mean(d.sm_active if has_gpm else d.busy for d in devices) for devices in found),
        power_w=tuple(_mean(d.power_w for d in devices) for devices in found),
        throttled=tuple(any(d.throttled for d in devices) for devices in found),
    )


def _summarise_node(agent: str, samples: Sequence[TelemetrySample]) -> NodeTelemetry:
    indices = sorted({device.index for sample in samples for device in sample.devices})
    return NodeTelemetry(
        agent=agent,
        samples=len(samples),
        cpu=_spread([sample.cpu for sample in samples]),
        session_cpu=_spread([sample.session_cpu for sample in samples]),
        memory_bytes=max(sample.memory_bytes for sample in samples),
        network_bytes_per_s=_short(
            fmean(s.network_sent_bytes_per_s + s.network_received_bytes_per_s for s in samples)
        ),
        devices=tuple(
            _summarise_device([d for sample in samples for d in sample.devices if d.index == index])
            for index in indices
        ),
        gap_s=_short(max(sample.gap_s for sample in samples)),
        errors=tuple(error for sample in samples for error in sample.errors),
    )


def _summarise_device(samples: Sequence[DeviceSample]) -> DeviceTelemetry:
    sm_active = [d.sm_active for d in samples if d.sm_active is not None]
    power = [d.power_w for d in samples if d.power_w is not None]
    clocks = [d.sm_clock_mhz for d in samples if d.sm_clock_mhz is not None]
    reasons = Counter(reason for d in samples for reason in d.throttled.split(", ") if reason)
    return DeviceTelemetry(
        index=samples[0].index,
        busy=_spread([d.busy for d in samples]),
        sm_active=_spread(sm_active) if sm_active else None,
        tensor_active=_mean(d.tensor_active for d in samples),
        memory_bytes=max(d.memory_bytes for d in samples),
        power_w=_spread(power) if power else None,
        sm_clock_mhz=float(median(clocks)) if clocks else None,
        temperature_c=max((float(d.temperature_c) for d in samples if d.temperature_c is not None), default=None),
        throttled={reason: _short(count / len(samples)) for reason, count in sorted(reasons.items())},
        pcie_bytes_per_s=_add(
            _mean(d.pcie_sent_bytes_per_s for d in samples), _mean(d.pcie_received_bytes_per_s for d in samples)
        ),
        nvlink_bytes_per_s=_add(
            _mean(d.nvlink_sent_bytes_per_s for d in samples),
            _mean(d.nvlink_received_bytes_per_s for d in samples),
        ),
        ecc_uncorrected=max((d.ecc_uncorrected for d in samples if d.ecc_uncorrected is not None), default=None),
    )  # fmt: skip


def _busy_share(sample: TelemetrySample) -> float:
    shares = [device.busy for device in sample.devices] or [sample.session_cpu or sample.cpu]
    return max(0.0, min(1.0, fmean(shares)))


def _spread(values: Sequence[float]) -> Spread:
    return Spread(mean=_short(fmean(values)), median=_short(median(values)), max=_short(max(values)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(fmean(known)) if known else None


def _add(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _short(value: float) -> float:
    """Four digits: the figures travel with every look at a job."""
    return float(f"{value:.4g}")


def say_taken(blocks: Iterable[Iterable[NodeTelemetry]]) -> str:
    """Return the sentence that others took processors while these blocks ran; empty where they took few, or no one saw.

    `blocks` are each block's nodes; the node of which others took most counts.
    """
    taken: dict[str, list[float]] = {}
    for nodes in blocks:
        for node in nodes:
            taken.setdefault(node.agent, []).append(node.cpu.mean - node.session_cpu.mean)
    share = max(map(fmean, taken.values()), default=0.0)
    if share < _TAKEN:
        return ""
    return f"While it was measured, other processes took {share:.0%} of the machine's processors."
