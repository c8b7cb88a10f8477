"""Steady state, block summaries and paired intervals."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.protocol.trials import BlockResult
from advisor.tuning.statistics import (
    autocorrelate,
    cut_warmup,
    estimate_batch_medians,
    find_percentile,
    is_cut_short,
    paired_interval,
    summarise_block,
)


def block(times: list[float], **fields: object) -> BlockResult:
    values = {"steps": len(times), "step_time_s": times, "samples_per_step": 32.0, "wall_s": sum(times)}
    return BlockResult.model_validate({**values, **fields})


def noisy(count: int, seed: int = 0, sigma: float = 0.02) -> list[float]:
    dice = random.Random(seed)
    return [0.1 * math.exp(dice.gauss(0, sigma)) for _ in range(count)]


def test_a_constant_block_has_its_own_rate_and_no_error() -> None:
    summary = summarise_block(block([0.1] * 30))

    assert summary.samples_per_s == pytest.approx(320.0)
    assert summary.log_step_time == pytest.approx(math.log(0.1))
    assert summary.log_step_time_se == pytest.approx(0.0, abs=1e-12)
    assert summary.steady
    assert summary.steady_steps == 30


def test_a_slow_start_is_cut() -> None:
    times = [0.4, 0.35, 0.3, 0.2, 0.15, 0.12, *noisy(54)]

    summary = summarise_block(block(times))

    assert summary.steady
    assert summary.steady_steps <= 55
    assert summary.median_step_time_s == pytest.approx(0.1, rel=0.01)
    assert summary.samples_per_s == pytest.approx(320, rel=0.02)


@pytest.mark.parametrize("count", [24, 60])
def test_a_block_that_keeps_getting_faster_is_not_steady(count: int) -> None:
    times = [0.1 * (2.0 - i / count) for i in range(count)]

    assert not summarise_block(block(times)).steady


def test_one_spike_does_not_move_the_score_but_costs_throughput() -> None:
    calm = summarise_block(block([0.1] * 60))
    spiked = summarise_block(block([0.1] * 40 + [2.0] + [0.1] * 19))

    assert spiked.log_step_time == pytest.approx(calm.log_step_time)
    assert spiked.samples_per_s < 0.8 * calm.samples_per_s


def test_periods_average_out_what_repeats() -> None:
    summary = summarise_block(block([0.05, 0.05, 0.05, 0.25] * 12, period=4))

    assert summary.steady
    assert summary.median_step_time_s == pytest.approx(0.1)
    assert summary.steady_steps == 48
    assert summary.autocorrelation == 0.0


def test_a_block_without_steps_has_a_summary_that_claims_nothing() -> None:
    summary = summarise_block(block([]))

    assert summary.steady_steps == 0
    assert not summary.steady


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_very_short_blocks_have_finite_figures(count: int) -> None:
    summary = summarise_block(block([0.1] * count))

    assert summary.samples_per_s == pytest.approx(320)
    assert summary.log_step_time_se >= 0


@given(st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1, max_size=150), st.integers(1, 16))
def test_every_block_has_a_finite_summary(times: list[float], period: int) -> None:
    summary = summarise_block(block(times, period=period))

    assert summary.samples_per_s > 0
    assert 0 < summary.steady_steps <= len(times)
    assert min(times) * 0.999 <= summary.median_step_time_s <= max(times) * 1.001
    assert -1 <= summary.autocorrelation <= 1


def test_batch_medians_cover_the_truth() -> None:
    covered = 0
    for seed in range(300):
        logs = [math.log(t / 0.1) for t in noisy(60, seed)]
        centre, error = estimate_batch_medians(logs)
        covered += abs(centre) <= 2.571 * error

    assert covered >= 0.90 * 300


def test_cut_warmup_leaves_half_at_least() -> None:
    drop, _ = cut_warmup([10.0 - i for i in range(60)])

    assert drop <= 30


def test_autocorrelation_tells_slow_noise_from_white() -> None:
    slow = [math.sin(i / 8) for i in range(100)]

    assert autocorrelate(slow) > 0.9
    assert abs(autocorrelate(noisy(200))) < 0.2
    assert autocorrelate([1.0, 1.0, 1.0, 1.0]) == 0.0


def test_percentiles_interpolate() -> None:
    assert find_percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert find_percentile([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert find_percentile([7.0], 0.95) == 7.0


def test_a_paired_interval_is_students() -> None:
    interval = paired_interval([0.01, 0.03, 0.02, 0.02], alpha=0.05)

    assert interval is not None
    assert interval.mean == pytest.approx(0.02)
    assert interval.half_width == pytest.approx(3.182 * 0.0081650 / 2, rel=1e-3)


def test_one_round_has_no_interval() -> None:
    assert paired_interval([0.1], alpha=0.05) is None


def test_a_block_is_cut_short_only_by_the_scripts_end() -> None:
    assert is_cut_short(block([0.1] * 8, script_ended=True))
    assert not is_cut_short(block([0.1] * 8))
    assert not is_cut_short(block([0.1] * 20, script_ended=True))
