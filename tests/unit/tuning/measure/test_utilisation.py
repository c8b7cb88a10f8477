"""Telemetry summed up: figures of a block, and series that stay short."""

import pytest

from advisor.protocol.measured.telemetry import DeviceError, DeviceSample, TelemetryPoint, TelemetrySample
from advisor.tuning.measure.utilisation import make_series, measure_utilisation, summarise_nodes


def sample(offset_s: float, *devices: DeviceSample, agent: str = "a0", **fields: object) -> TelemetryPoint:
    values = {"age_s": 0.0, "cpu": 0.5, "session_cpu": 0.25, "devices": devices} | fields
    return TelemetryPoint(agent=agent, offset_s=offset_s, sample=TelemetrySample(**values))


def device(index: int = 0, busy: float = 0.9, **fields: object) -> DeviceSample:
    return DeviceSample(index=index, busy=busy, memory_bytes=10, **fields)


def test_devices_speak_for_a_node_that_has_any() -> None:
    assert measure_utilisation(
        [sample(0, device(0, 0.8), device(1, 0.4)), sample(1, device(0, 0.6))]
    ) == pytest.approx(0.6)
    assert measure_utilisation([sample(0)]) == 0.25
    assert measure_utilisation([]) is None


def test_gap_is_no_idle_time() -> None:
    points = [sample(0, device(busy=0.8)), sample(1, gap_s=1.0), sample(2, gap_s=2.0)]
    assert measure_utilisation(points) == 0.8
    assert measure_utilisation(points[1:]) is None
    (node,) = summarise_nodes(points)
    assert node.gap_s == 2.0
    assert node.devices[0].busy.mean == 0.8


def test_a_node_is_summed_up() -> None:
    points = [
        sample(0, device(power_w=100.0, sm_clock_mhz=1000, throttled="SwPowerCap, HwSlowdown"), memory_bytes=7),
        sample(1, device(busy=0.5, power_w=400.0, sm_clock_mhz=1500, sm_active=0.5, temperature_c=70)),
        sample(2, device(busy=0.4, power_w=700.0, sm_clock_mhz=2000, sm_active=0.7, tensor_active=0.2)),
        sample(3, device(pcie_sent_bytes_per_s=10.0, pcie_received_bytes_per_s=5.0), agent="a1"),
    ]  # fmt: skip
    first, second = summarise_nodes([*points, sample(4, errors=(DeviceError(device=0, code=31),))])
    (gpu,) = first.devices
    assert (first.agent, first.samples, first.memory_bytes) == ("a0", 4, 7)
    assert first.errors[0].code == 31
    assert (gpu.busy.mean, gpu.busy.median, gpu.busy.max) == (0.6, 0.5, 0.9)
    assert (gpu.power_w.mean, gpu.sm_clock_mhz, gpu.temperature_c) == (400, 1500, 70)
    assert (gpu.sm_active.max, gpu.tensor_active) == (0.7, 0.2)
    assert gpu.throttled == {
        "HwSlowdown": pytest.approx(1 / 3, rel=1e-3),
        "SwPowerCap": pytest.approx(1 / 3, rel=1e-3),
    }
    assert gpu.nvlink_bytes_per_s is None
    assert second.devices[0].pcie_bytes_per_s == 15


@pytest.mark.parametrize("seconds", [1, 119, 120, 121, 5000])
def test_series_stay_short_and_lose_no_sample(seconds: int) -> None:
    points = [sample(float(n), device(busy=1.0 if n == seconds - 1 else 0.0)) for n in range(seconds)]
    found = make_series("s", points)
    (series,) = found.series
    assert len(series.share) <= 120
    assert len(series.share) == len(series.power_w) == len(series.throttled)
    assert None not in series.share
    assert series.share[-1] > 0
    assert len(series.share) * found.stretch_s >= seconds - 1


def test_series_shows_what_the_card_offers() -> None:
    points = [sample(0.0, device()), sample(1.0, device(sm_active=0.5, throttled="HwSlowdown"))]
    points += [sample(3.0, device(sm_active=0.7)), sample(0.0, agent="cpu-node")]
    gpu, cpu = make_series("s", points).series
    assert (gpu.agent, gpu.device, gpu.measure) == ("a0", 0, "sm")
    assert gpu.share == (None, 0.5, None, 0.7)
    assert gpu.throttled == (False, True, False, False)
    assert (cpu.measure, cpu.device, cpu.share[0]) == ("cpu", None, 0.25)
    assert make_series("s", []).series == ()
