"""Jobs with a known gain: what weathers do to steps, and how a job's word is held against the truth."""

import math
import random
from statistics import fmean

import pytest
from honesty import SimulatedSurface, carry, describe_share, estimate_truth
from weathers import WEATHERS, Weather

STILL = {"step": 0.0, "stalls": 0.0, "launch": 0.0, "luck": 0.0, "arm": 0.0, "walk": 0.0}
FASTER = {"fuse_grad_size_in_MB": 4.0}


def race(weather: Weather, gain: float, steps: int = 400) -> list[list[float]]:
    """The steps of the baseline and of the faster strategy, which take turns of five."""
    surface = SimulatedSurface("s", weather, gain, random.Random(1))
    heat = surface.launch(random.Random(1)).race([surface.find({}), surface.find(FASTER)])
    times: list[list[float]] = [[], []]
    for turn in range(steps // 5):
        heat.step(turn % 2, 0)
        times[turn % 2] += [heat.step(turn % 2, since) for since in range(1, 6)]
    return times


def test_without_weather_steps_differ_by_the_gain_alone() -> None:
    slow, fast = race(Weather(**STILL), 0.25)
    assert slow == pytest.approx([1.25 * fast[0]] * len(slow))
    assert fast == pytest.approx([fast[0]] * len(fast))


def test_what_arms_share_cancels_and_the_luck_of_a_launch_does_not() -> None:
    slow, fast = race(Weather(**{**STILL, "bursts": 0.5, "hours": 0.2}), 0.0, 8000)
    assert max(slow) / min(slow) > 1.3
    assert fmean(slow) / fmean(fast) == pytest.approx(1.0, abs=0.03)
    slow, fast = race(Weather(**{**STILL, "luck": 0.01}), 0.0)
    assert abs(math.log(slow[0] / fast[0])) > 1e-4


def test_after_a_swap_steps_run_partly_like_the_arm_before() -> None:
    _, fast = race(Weather(**{**STILL, "carry": 0.5}), 0.2)
    assert fast[0] / fast[4] == pytest.approx(1.2 ** (0.5 - 0.5 / 16))


def test_the_truth_of_noisier_strategies_is_of_all_of_their_steps() -> None:
    weather = WEATHERS["faster is noisier"]
    slow, fast = race(weather, 0.2, 8_000)
    means = [fmean(slow), fmean(fast)]
    assert estimate_truth(weather, 0.2) == pytest.approx(math.log(means[0] / means[1]), abs=0.03)


def test_a_large_gain_on_a_calm_machine_is_found_and_told_truly() -> None:
    told = carry("calm", 0.2, seed=1, minutes=3.0)
    assert told.verdict == "change"
    assert told.is_right
    assert told.covered
    assert told.seconds < 180.0


def test_a_share_has_its_interval() -> None:
    assert describe_share(0, 100) == "0.0% (0.0% … 3.7%)"
