"""The contrast of two arms of a race: its estimate, its error, and the forecast of it."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Contrast
from advisor.tuning.measure.contrast import contrast_arms, forecast_errors

Times = NDArray[np.float64]


def report(times: Times | list[float], segments: tuple[int, ...] = (), **fields: object) -> BlockResult:
    steps = tuple(float(t) for t in times)
    values = {"steps": len(steps), "step_time_s": steps, "samples_per_step": 32.0, "wall_s": sum(steps)}
    return BlockResult(**{**values, "segments": segments, **fields})


def contrast(arm: BlockResult, reference: BlockResult) -> Contrast:
    found = contrast_arms(arm, reference)
    assert found is not None
    return found


def draw(dice: np.random.Generator, count: int, spread: float = 0.15, stalls: float = 0.02) -> Times:
    """Steps of 50 ms with stalls, on a machine that slows down and recovers by 10 %."""
    sway = 1.0 + 0.1 * np.sin(np.arange(count) / 150.0)
    stalled = (dice.random(count) < stalls) * dice.exponential(2.0, count)
    times: Times = 0.05 * sway * np.exp(spread * dice.standard_normal(count)) * (1.0 + stalled)
    return times


def race(
    dice: np.random.Generator,
    cycles: int,
    size: int,
    log_ratio: float = 0.0,
    spread: float = 0.15,
    stalls: float = 0.02,
) -> Contrast:
    turns = draw(dice, 2 * cycles * size, spread, stalls).reshape(cycles, 2, size)
    segments = (size,) * cycles
    arm = report(turns[:, 0].ravel() * math.exp(-log_ratio), segments)
    return contrast(arm, report(turns[:, 1].ravel(), segments))


def test_constant_steps_give_their_ratio_without_error() -> None:
    found = contrast(report([0.08] * 20, (5,) * 4), report([0.1] * 20, (5,) * 4))

    assert found.mean == pytest.approx(math.log(1.25))
    assert found.total == pytest.approx(math.log(1.25))
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.cycles == 4


def test_samples_count_not_steps() -> None:
    found = contrast(report([0.1] * 20, (5,) * 4, samples_per_step=64.0), report([0.1] * 20, (5,) * 4))

    assert found.mean == pytest.approx(math.log(2.0))


def test_a_stall_moves_the_total_and_hardly_the_typical_gain() -> None:
    steps = [0.1] * 40
    stalled = [*steps[:7], 4.0, *steps[8:]]

    found = contrast(report(stalled, (5,) * 8), report(steps, (5,) * 8))

    assert found.total == pytest.approx(math.log(40 * 0.1 / (39 * 0.1 + 4.0)))
    assert -0.02 < found.mean < 0.0
    assert found.total_error > 10 * found.error


def test_only_cycles_that_both_arms_have_are_compared() -> None:
    """The arm was given up after two cycles; the machine got twice as slow afterwards."""
    reference = report([0.1] * 10 + [0.2] * 30, (5,) * 8)

    short = contrast(report([0.1] * 10, (5, 5)), reference)
    padded = contrast(report([0.1] * 10, (5, 5, 0, 0, 0, 0, 0, 0)), reference)

    for found in (short, padded):
        assert found.mean == pytest.approx(0.0)
        assert found.cycles == 2


def test_a_drift_of_the_machine_cancels_within_cycles() -> None:
    drift = np.linspace(0.1, 0.3, 400).reshape(40, 2, 5)
    segments = (5,) * 40

    found = contrast(report(drift[:, 0].ravel(), segments), report(drift[:, 1].ravel(), segments))

    assert abs(found.mean) < 0.02


def test_segments_of_unequal_length_are_weighed_by_their_steps() -> None:
    """A cycle of one step says a fifth of what one of five does."""
    arm = report([0.1] * 5 + [0.3] + [0.1] * 10, (5, 1, 5, 5))

    found = contrast(arm, report([0.1] * 20, (5,) * 4))

    assert found.total == pytest.approx(math.log(0.1 / (1.8 / 16)))


def test_periods_are_capped_whole() -> None:
    """Every fourth step synchronises and takes three times as long: that is the strategy, not a stall."""
    local = [0.1, 0.1, 0.1, 0.3] * 10

    found = contrast(report(local, (4,) * 10, period=4), report([0.15] * 40, (4,) * 10))

    assert found.mean == pytest.approx(0.0, abs=1e-9)


def test_segments_that_are_no_multiple_of_the_period_are_used_whole() -> None:
    found = contrast(report([0.1, 0.2] * 15, (6,) * 5, period=2), report([0.15] * 25, (5,) * 5))

    assert found.total == pytest.approx(0.0)
    assert found.cycles == 5


def test_results_without_segments_are_blocks_one_after_the_other() -> None:
    dice = np.random.default_rng(3)

    found = contrast(report(draw(dice, 60) / 1.2), report(draw(dice, 60), (5,) * 12))

    assert found.cycles == 0
    assert found.mean == pytest.approx(math.log(1.2), abs=4 * found.error)
    assert 0.01 < found.error < 0.2
    assert 2.0 <= found.freedom <= 10.0


@pytest.mark.parametrize(("arm", "reference"), [([], [0.1] * 10), ([0.1] * 10, [])])
def test_nothing_is_said_of_an_arm_without_steps(arm: list[float], reference: list[float]) -> None:
    assert contrast_arms(report(arm), report(reference)) is None


def test_a_single_step_has_an_error_of_its_own_size() -> None:
    assert contrast(report([0.1]), report([0.1] * 20)).error >= 0.1


@pytest.mark.parametrize(("cycles", "size"), [(12, 5), (60, 5), (200, 2)])
def test_an_error_says_how_far_estimates_scatter(cycles: int, size: int) -> None:
    dice = np.random.default_rng(cycles)
    found = [race(dice, cycles, size, log_ratio=0.05) for _ in range(200)]

    off = np.array([c.mean - 0.05 for c in found])
    said = math.sqrt(np.mean([c.error**2 for c in found]))

    assert 0.8 < math.sqrt(np.mean(off**2)) / said < 1.2
    assert abs(off.mean()) < 4 * said / math.sqrt(len(found))


def test_an_error_knows_that_the_cap_moves_with_the_median() -> None:
    """With a quarter of the steps beyond the cap, half of the variance is the cap's."""
    dice = np.random.default_rng(5)
    found = [race(dice, 100, 5, spread=0.5, stalls=0.12) for _ in range(200)]

    scatter = math.sqrt(np.mean([c.mean**2 for c in found]))

    assert 0.75 < scatter / math.sqrt(np.mean([c.error**2 for c in found])) < 1.15


@pytest.mark.parametrize("cycles", [2, 3, 4, 5])
def test_errors_of_very_few_cycles_are_seldom_too_small(cycles: int) -> None:
    dice = np.random.default_rng(cycles)
    found = [race(dice, cycles, 4) for _ in range(200)]

    beyond = sum(abs(c.mean) > 2.5 * c.error for c in found)

    assert beyond < 0.06 * len(found)


def test_alternating_beats_blocks_on_a_machine_that_sways() -> None:
    dice = np.random.default_rng(7)
    fine, coarse = [], []
    for _ in range(100):
        times = draw(dice, 600, 0.05, 0.0)
        turns = times.reshape(60, 2, 5)
        fine.append(
            contrast(report(turns[:, 0].ravel(), (5,) * 60), report(turns[:, 1].ravel(), (5,) * 60)).mean
        )
        coarse.append(contrast(report(times[:300]), report(times[300:])).mean)

    assert np.std(fine) < 0.3 * math.sqrt(np.mean(np.square(coarse)))


def test_a_forecast_is_about_the_error_that_a_race_has() -> None:
    dice = np.random.default_rng(11)
    race_s = 2 * 60 * 5 * 0.05
    had = math.sqrt(np.mean([race(dice, 60, 5).error ** 2 for _ in range(50)]))

    forecast = np.median([forecast_errors(tuple(draw(dice, 60)), 5)(race_s) for _ in range(50)])

    assert 0.6 < forecast / had < 1.4


@pytest.mark.parametrize("steps", [20, 30, 60, 100])
def test_a_forecast_of_a_short_block_is_within_a_factor(steps: int) -> None:
    dice = np.random.default_rng(steps)
    forecasts = [forecast_errors(tuple(draw(dice, steps)), 5)(30.0) for _ in range(100)]

    middle = float(np.median(forecasts))

    assert middle / 2.5 < np.quantile(forecasts, 0.05) < np.quantile(forecasts, 0.95) < 2.5 * middle


def test_a_forecast_falls_with_the_root_of_the_time() -> None:
    steps = tuple(draw(np.random.default_rng(1), 60))

    error_of = forecast_errors(steps, 5)
    assert error_of(40.0) == pytest.approx(error_of(10.0) / 2.0)


@pytest.mark.parametrize("steps", [(), (0.1,)])
def test_a_forecast_from_next_to_nothing_is_a_cautious_one(steps: tuple[float, ...]) -> None:
    assert forecast_errors(steps, 5)(60.0) > 0.1


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("segments", [(10,) * 20, (4,) * 5, ()], ids=str)
def test_the_error_is_that_of_both_counts_and_times_where_steps_differ_in_their_samples(
    share: float, segments: tuple[int, ...]
) -> None:
    """`share` of a step's time goes with its samples. With all of it, counts add nothing to what is doubtful."""
    dice = np.random.default_rng(7)
    steps = sum(segments) or 200

    def draw_arm() -> BlockResult:
        counts = 16.0 * np.exp(0.12 * dice.standard_normal(steps))
        times = 0.05 * (1.0 - share + share * counts / 16.0) * np.exp(0.02 * dice.standard_normal(steps))
        told = {"samples_per_step": float(counts.mean()), "step_samples": tuple(counts.tolist())}
        return report(times, segments, **told)

    found = [contrast(draw_arm(), draw_arm()) for _ in range(300)]
    true = float(np.std([each.mean for each in found]))
    told = float(np.sqrt(np.mean([each.error**2 for each in found])))
    assert 0.85 * true < told < 1.6 * true
    alone = math.sqrt(2.0 / steps) * 0.02
    assert (true < 1.5 * alone) == (share == 1.0)
