"""Statistical efficiency, from the gradient noise scale and from losses, and goodput."""

import math
import random
from statistics import fmean

import pytest

from advisor.protocol.answers.advice import Interval
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import Calibration, GradientNoise
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.history.goodput import Efficiency, combine, efficiency_of, estimate_noise_scale
from advisor.tuning.history.scores import score_trials
from advisor.tuning.search.state import choose_winner, look
from tests.unit.tuning.trainings import LOCAL, Training

MERGED: dict[str, Value] = {"gradient_merge": True, "gradient_merge_k_steps": 4}


def noise_of(scale: float, small: float = 16, large: float = 64, steps: int = 50) -> GradientNoise:
    """The norms that a gradient of square 1 and that noise scale has on average."""
    return GradientNoise(
        small_batch=small, large_batch=large, small_square=1 + scale / small, large_square=1 + scale / large,
        steps=steps,
    )  # fmt: skip


@pytest.mark.parametrize("scale", [10.0, 400.0, 20_000.0])
def test_the_noise_scale_is_found_from_two_batches(scale: float) -> None:
    assert estimate_noise_scale(noise_of(scale)) == pytest.approx(scale)


def test_the_bound_of_the_noise_scale_holds_in_nine_of_ten_probes() -> None:
    dice, size, scale, held = random.Random(1), 40, 300.0, 0
    sigma = math.sqrt(scale / size)
    for _ in range(200):
        small, large = [], []
        for _ in range(6):
            ranks = [[0.0] * size for _ in range(2)]
            for gradient in ranks:
                for i in range(size):
                    gradient[i] = 1 / math.sqrt(size) + dice.gauss(0, sigma / math.sqrt(16))
            small.append(fmean(sum(g * g for g in gradient) for gradient in ranks))
            large.append(sum(((a + b) / 2) ** 2 for a, b in zip(*ranks, strict=True)))
        noise = GradientNoise(
            small_batch=16, large_batch=32, small_square=fmean(small), large_square=fmean(large), steps=6
        )
        bound = estimate_noise_scale(noise, 1.2816)
        held += bound is not None and bound <= scale
    # At least 90 %, less three binomial standard errors of 200 draws (2.1 %).
    assert held / 200 >= 0.84


def test_norms_that_show_no_signal_tell_nothing() -> None:
    assert (
        estimate_noise_scale(
            GradientNoise(small_batch=16, large_batch=64, small_square=4.0, large_square=1.0, steps=9)
        )
        is None
    )


def test_a_merged_batch_is_judged_by_the_noise_scale() -> None:
    calibration = Calibration(noise=noise_of(640.0, steps=10_000))
    training = Training(MERGED, calibration=calibration, noise=1.0).confirm()

    efficiency = efficiency_of(training.record, training.trials[1])

    assert efficiency is not None
    # (640 + 64) / (640 + 256), and a little less: the bound of the scale is 640 × 0.92.
    assert 704 / 896 - 0.02 < efficiency.value < 704 / 896
    assert "gradient noise scale" in efficiency.because


def test_losses_that_show_more_harm_than_the_noise_scale_count() -> None:
    calibration = Calibration(noise=noise_of(1e6, steps=10_000))
    training = Training(MERGED, efficiency=0.5, noise=0.005, calibration=calibration).confirm()

    efficiency = efficiency_of(training.record, training.trials[1])

    assert efficiency is not None
    assert efficiency.value == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("truth", [0.4, 0.8])
def test_losses_at_equal_samples_show_the_efficiency(truth: float) -> None:
    found = []
    for seed in range(40):
        training = Training(efficiency=truth, seed=seed).confirm()
        efficiency = efficiency_of(training.record, training.trials[1])
        assert efficiency is not None
        found.append(efficiency)
    # The mean of 40 estimates, within four of its standard errors.
    assert fmean(e.value for e in found) == pytest.approx(
        truth, abs=4 * fmean(e.error for e in found) / 40**0.5
    )


def test_an_efficiency_is_never_above_one() -> None:
    training = Training(efficiency=1.4, noise=0.001).confirm()
    efficiency = efficiency_of(training.record, training.trials[1])

    assert efficiency is not None
    assert efficiency.value == 1.0


def test_losses_too_noisy_to_tell_are_not_used() -> None:
    training = Training(efficiency=0.5, noise=1.0).confirm()

    assert efficiency_of(training.record, training.trials[1]) is None


def test_a_search_trial_is_scored_by_goodput() -> None:
    training = Training(efficiency=0.5, noise=0.005, speed=1.8)
    training.launch()
    number = training.add_trial(Purpose.SEARCH, LOCAL)
    training.race(0)
    training.race(0, number)

    record = training.record
    trial = record.history.trial(number)
    scores = score_trials(record)
    efficiency = efficiency_of(record, trial)
    assert efficiency is not None
    # 1.8 times as many samples of which each teaches half as much are no gain.
    assert scores.throughput[number].mean == pytest.approx(math.log(1.8))
    assert scores.progress[number].mean == pytest.approx(math.log(1.8) + efficiency.log)
    assert scores.progress[number].mean < 0
    assert scores.progress[number].error > scores.throughput[number].error


def test_an_interval_whose_price_is_not_known_is_expected_to_cost_something() -> None:
    training = Training(efficiency=1.0, noise=1.0, speed=1.8)
    training.launch()
    number = training.add_trial(Purpose.SEARCH, LOCAL)
    training.race(0)
    training.race(0, number)

    scores = score_trials(training.record)

    assert efficiency_of(training.record, training.trials[number]) is None
    assert scores.progress[number].mean < scores.throughput[number].mean
    assert scores.progress[number].error > scores.throughput[number].error


def test_goodput_is_throughput_times_efficiency_with_both_errors() -> None:
    gain = Interval(ratio=2.0, low=1.8, high=2.2, rounds=8, sessions=2)

    goodput = combine(gain, Efficiency(0.8, 0.03, ""), Effect.CONVERGENCE)
    certain = combine(gain, Efficiency(0.8, 0.0, ""), Effect.CONVERGENCE)

    assert goodput is not None
    assert certain is not None
    assert goodput.ratio == pytest.approx(1.6)
    assert certain.low == pytest.approx(1.8 * 0.8)
    assert goodput.low < certain.low
    assert goodput.high <= gain.high
    assert combine(gain, None, Effect.CONVERGENCE) is None
    assert combine(gain, Efficiency(1.0, 0.0, ""), Effect.EXACT) == gain


@pytest.mark.parametrize("freedom", [2, 8, 60])
def test_the_interval_of_goodput_is_wider_for_fewer_degrees_of_freedom(freedom: int) -> None:
    gain = Interval(ratio=2.0, low=1.8, high=2.2, rounds=8, sessions=2)

    found = combine(gain, Efficiency(0.8, 0.03, "", freedom), Effect.CONVERGENCE)
    more = combine(gain, Efficiency(0.8, 0.03, "", freedom + 1), Effect.CONVERGENCE)

    assert found is not None
    assert more is not None
    assert found.low < more.low < 1.6


def test_the_search_is_won_by_goodput() -> None:
    buckets: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
    training = Training(efficiency=0.5, noise=0.005, speed=1.8)
    training.trials = training.trials[:1]
    training.launch()
    searched = [training.add_trial(Purpose.SEARCH, changes) for changes in (LOCAL, buckets)]
    training.race(0)
    training.race(0, *searched)

    # Local SGD is 1.8 times as fast, but a sample teaches half as much: the exact strategy is not slower in progress.
    state = look(training.record)
    assert state is not None
    winner = choose_winner(state)
    assert winner is not None
    assert winner.changes == buckets
