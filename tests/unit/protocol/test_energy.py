"""Joules and money of a sample, from NVML's counter where there is one."""

import pytest

from advisor.protocol.answers.energy import TimedSample, find_window, measure_power, say_costs
from advisor.protocol.measured.results import BlockResult, RankTimeline, Span
from advisor.protocol.measured.telemetry import DeviceSample, TelemetrySample


def see(at_s: float, *devices: DeviceSample) -> TimedSample:
    return TimedSample(at_s, TelemetrySample(age_s=0.0, cpu=0.5, devices=devices))


def device(index: int, **figures: float) -> DeviceSample:
    return DeviceSample(index=index, busy=0.9, memory_bytes=1, **figures)


def test_the_window_is_that_of_the_timed_steps_by_the_machines_clock() -> None:
    spans = (Span("step", 0.5, 1.0), Span("forward_s", 0.5, 0.4), Span("step", 1.5, 1.25))
    result = BlockResult(2, (1.0, 1.25), 8, 2.25, timelines=(RankTimeline(0, "a", spans, 100.0),))
    assert find_window(result) == (100.5, 102.75)
    assert find_window(BlockResult(2, (1.0, 1.25), 8, 2.25)) is None


def test_the_counter_tells_what_all_devices_used_in_the_window_and_power_does_where_there_is_none() -> None:
    # Two devices whose power lies: their counters grow by 300 and 100 J a second inside the window, and by 10 outside.
    seen = [
        see(
            at_s,
            device(0, energy_j=10.0 * at_s + 290.0 * min(max(at_s - 10.0, 0.0), 2.0), power_w=1.0),
            device(1, energy_j=100.0 * at_s),
        )
        for at_s in (8.0, 9.0, 10.0, 11.0, 12.0, 13.0)
    ]
    assert measure_power(seen, (10.1, 11.9)) == pytest.approx(400.0)
    older = [
        see(at_s, device(0, power_w=power_w)) for at_s, power_w in ((9.0, 50.0), (11.0, 200.0), (11.5, 400.0))
    ]
    assert measure_power(older, (10.0, 12.0)) == pytest.approx(300.0)
    assert measure_power([see(11.0, device(0))], (10.0, 12.0)) is None
    assert measure_power([see(11.0)], (10.0, 12.0)) is None
    assert measure_power(seen, None) is None


def test_a_sample_is_told_in_joules_and_a_million_in_money() -> None:
    assert (
        say_costs(200.0, "samples/s", 400.0, 3.6)
        == "400 W, 2 J a sample · 5 for a million samples at 3.6 an hour"
    )
    assert say_costs(2.0, "steps/s", 400.0, None) == "400 W, 200 J a step"
    assert say_costs(200.0, "samples/s", None, None) == ""
