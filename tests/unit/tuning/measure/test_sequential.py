"""The verdict over launches: decisions, intervals, what looks spend, and plans."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.protocol.measured.trials import Contrast
from advisor.tuning.measure.levels import find_level
from advisor.tuning.measure.pooling import UNKNOWN_LUCK, Luck, pool_launches
from advisor.tuning.measure.sequential import (
    REPORTED,
    ConfirmationPlan,
    Look,
    chance_to_decide,
    look_at,
    plan_confirmation,
)
from advisor.tuning.measure.student_t import t_quantile


def launch(mean: float, error: float = 0.008, total: float | None = None, freedom: float = 31.0) -> Contrast:
    return Contrast(
        mean=mean,
        error=error,
        freedom=freedom,
        cycles=100,
        total=mean if total is None else total,
        total_error=2 * error,
        per_step=mean,
        excess_error=2 * error,
        slow_shares=(0.0, 0.0),
    )


def look(
    launches: Sequence[Contrast],
    planned: int = 4,
    forced: bool = False,
    ended: Sequence[int] = (),
    min_gain: float = 0.01,
) -> Look:
    found = look_at(launches, planned=planned, min_gain=min_gain, forced=forced, ended=ended)
    assert found is not None
    return found


# --- decisions ---------------------------------------------------------------------------------------


def test_nothing_is_said_without_a_launch_and_nothing_decided_after_one() -> None:
    assert look_at([], planned=4, min_gain=0.01, forced=False) is None

    single = look([launch(1.0)], planned=2, forced=True)

    assert single.decision is None
    assert single.low < 1.0 < single.high


def test_a_large_gain_is_a_change_after_two_launches() -> None:
    found = look([launch(math.log(3.1), 0.02), launch(math.log(3.4), 0.02)], planned=8)

    assert found.decision == "change"
    assert math.exp(found.low) > 2.4


def test_a_small_gain_waits_for_more_launches() -> None:
    gains = [0.03, 0.025, 0.035, 0.03]

    assert look([launch(g) for g in gains[:2]]).decision is None
    assert look([launch(g) for g in gains]).decision == "change"


def test_a_gain_below_the_worthwhile_one_is_no_change() -> None:
    """It is surely above 0, surely below 3 %: keep; against 1 % it is open."""
    launches = [launch(0.009 + d, 0.001) for d in (0.001, -0.001, 0.0, 0.001, -0.001, 0.0)]

    assert look(launches, planned=6, min_gain=0.03).decision == "keep"
    assert look(launches, planned=6, min_gain=0.01).decision is None


def test_a_loss_is_kept_away_from() -> None:
    assert look([launch(-0.2), launch(-0.25)], planned=8).decision == "keep"


def test_what_slow_steps_of_its_own_take_counts_against_a_strategy() -> None:
    launches = [
        launch(0.05, 0.002, total=-0.2),
        launch(0.052, 0.002, total=-0.2),
        launch(0.048, 0.002, total=-0.2),
    ]

    assert look(launches, planned=3).decision == "keep"
    assert look(launches, planned=3).high < 0.0
    assert look([launch(0.05, 0.002, total=0.049) for _ in range(3)], planned=3).decision == "change"


def test_a_look_that_the_budget_forces_spends_what_is_left() -> None:
    launches = [launch(0.022), launch(0.03), launch(0.026)]

    assert look(launches, planned=8).decision is None
    assert look(launches, planned=8, forced=True).decision == "change"


def test_launches_that_differ_widen_the_interval() -> None:
    alike = look([launch(0.03, 0.001), launch(0.031, 0.001), launch(0.029, 0.001)])
    apart = look([launch(0.05, 0.001), launch(0.03, 0.001), launch(0.01, 0.001)])

    assert apart.high - apart.low > 2.0 * (alike.high - alike.low)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    means=st.lists(st.floats(-0.3, 0.3), min_size=2, max_size=8),
    error=st.floats(0.0, 0.1),
    planned=st.integers(2, 8),
    forced=st.booleans(),
    min_gain=st.sampled_from([0.0, 0.01, 0.05]),
    freedom=st.floats(1.0, 40.0),
)
def test_an_interval_never_contradicts_its_decision(
    means: list[float], error: float, planned: int, forced: bool, min_gain: float, freedom: float
) -> None:
    found = look([launch(m, error, freedom=freedom) for m in means], planned, forced, (), min_gain)

    assert found.low < found.mean < found.high
    assert found.decision != "change" or (found.low > 0.0 and found.mean >= math.log1p(min_gain))
    assert found.decision != "keep" or found.high < math.log1p(min_gain)
    is_worthwhile = found.low > 0.0 and found.mean >= math.log1p(min_gain)
    assert found.decision == "change" or not is_worthwhile


# --- what launches say together ----------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    means=st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=8),
    error=st.floats(0.0, 0.3),
    freedom=st.floats(1.0, 40.0),
    level=st.floats(1e-5, 0.5),
)
def test_interval_ends_leave_outside_what_they_should(
    means: list[float], error: float, freedom: float, level: float
) -> None:
    count = len(means)
    pooled = pool_launches(means, [error] * count, [freedom] * count, [50] * count)
    low, high = pooled.interval(level)

    assert pooled.probability_below(low) == pytest.approx(level / 2.0, rel=1e-3)
    assert 1.0 - pooled.probability_below(high) == pytest.approx(level / 2.0, rel=1e-3)


def test_many_noisy_launches_have_the_textbook_interval() -> None:
    """Where races' own errors are large, known and right, what is left is a normal interval of their mean."""
    means = [0.1 * x for x in (-1.2, 0.4, 1.1, -0.3, 0.9, -0.9, 0.1, -0.1)]
    low, high = pool_launches(means, [0.08] * 8, [200.0] * 8, [200] * 8).interval(0.05)

    assert (high - low) / 2.0 == pytest.approx(1.96 * 0.08 / math.sqrt(8), rel=0.1)


def test_quiet_launches_have_about_a_t_interval_of_their_means() -> None:
    means = [0.02, -0.03, 0.04, -0.01, 0.0, 0.03, -0.04, 0.01]
    low, high = pool_launches(means, [0.0] * 8, [31.0] * 8, [100] * 8).interval(0.05)

    assert (high - low) / 2.0 == pytest.approx(
        t_quantile(0.975, 7) * np.std(means, ddof=1) / math.sqrt(8), rel=0.15
    )


def test_an_error_small_by_luck_does_not_rule() -> None:
    """Three races of two cycles: one of them happens to show hardly any error."""
    pooled = pool_launches([0.3, 0.0, 0.01], [0.002, 0.1, 0.1], [1.0] * 3, [2] * 3)

    assert pooled.mean < 0.2


# --- levels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [2, 3, 5, 8])
def test_the_looks_of_a_plan_spend_four_per_cent_together(planned: int) -> None:
    """Of either side 2 %: a simulation of normal launches without a gain."""
    dice = np.random.default_rng(planned)
    sums = np.cumsum(dice.standard_normal((200_000, planned)), axis=1) / np.sqrt(np.arange(1, planned + 1))
    bounds = np.array(
        [math.inf, *(_bound(find_level(k, planned, forced=False)) for k in range(2, planned + 1))]
    )

    crossed = float((sums > bounds).any(axis=1).mean())

    assert crossed == pytest.approx(0.02, abs=0.0015)


def test_continued_budgets_never_spend_more_than_five_per_cent() -> None:
    dice = np.random.default_rng(1)
    sums = np.cumsum(dice.standard_normal((200_000, 12)), axis=1) / np.sqrt(np.arange(1, 13))
    bounds = [math.inf, *(_bound(find_level(k, 4, forced=False)) for k in (2, 3, 4))]
    bounds += [_bound(find_level(k, 8, forced=False, ended=(4,))) for k in (5, 6, 7, 8)]
    bounds += [_bound(find_level(k, 12, forced=k == 11, ended=(4, 8))) for k in (9, 10, 11)]

    crossed = float((sums[:, :11] > np.array(bounds)).any(axis=1).mean())

    assert 0.02 < crossed < 0.025


def test_levels_of_a_plan_grow() -> None:
    levels = [find_level(k, 8, forced=False) for k in range(2, 9)]

    assert levels == sorted(levels)
    assert levels[0] < 0.001
    assert find_level(5, 8, forced=True) > find_level(5, 8, forced=False)


def test_launches_beyond_the_plan_are_continuations() -> None:
    assert find_level(6, 4, forced=False) == find_level(6, 6, forced=False, ended=(4, 5))


def _bound(level: float) -> float:
    return NormalDist().inv_cdf(1.0 - level / 2.0)


# --- whole jobs --------------------------------------------------------------------------------------


def carry(dice: np.random.Generator, gain: float, error: float, luck: float, planned: int) -> Look:
    launches: list[Contrast] = []
    while True:
        said = error * math.sqrt(dice.chisquare(31) / 31)
        launches.append(launch(gain + math.hypot(luck, error) * dice.standard_normal(), said))
        found = look(launches, planned)
        hopeless = len(launches) > 1 and chance_to_decide(launches, planned, 0.01) < 0.05
        if found.decision or len(launches) == planned or hopeless:
            return found


@pytest.mark.parametrize(
    ("error", "luck", "planned"), [(0.0015, 0.01, 6), (0.0085, 0.005, 6), (0.0085, 0.01, 6)]
)
def test_equal_strategies_are_seldom_a_change_and_intervals_hold(
    error: float, luck: float, planned: int
) -> None:
    dice = np.random.default_rng(1)
    found = [carry(dice, 0.0, error, luck, planned) for _ in range(100)]

    assert sum(f.decision == "change" for f in found) <= 6
    assert sum(f.low <= 0.0 <= f.high for f in found) >= 87


def test_three_per_cent_is_found_at_usual_noise() -> None:
    dice = np.random.default_rng(2)
    found = [carry(dice, math.log(1.03), 0.0085, 0.005, 6) for _ in range(60)]

    assert sum(f.decision == "change" for f in found) >= 57
    assert sum(f.low <= math.log(1.03) <= f.high for f in found) >= 53
    assert np.mean([f.launches for f in found]) < 4.5


# --- the chance to decide ----------------------------------------------------------------------------


def test_the_chance_to_decide_is_about_the_share_that_does() -> None:
    dice = np.random.default_rng(4)
    foretold, decided = [], []
    for gain in (0.0, 0.01, 0.02) * 40:
        launches = [launch(gain + 0.011 * dice.standard_normal(), 0.01) for _ in range(6)]
        if look(launches[:3], 6).decision is None:
            foretold.append(chance_to_decide(launches[:3], 6, 0.01))
            decided.append(look(launches, 6).decision is not None)

    assert np.mean(foretold) == pytest.approx(np.mean(decided), abs=0.15)
    assert np.corrcoef(foretold, decided)[0, 1] > 0.2


def test_a_gain_on_the_edge_of_a_noisy_race_is_hopeless() -> None:
    launches = [launch(0.012, 0.08), launch(-0.004, 0.08), launch(0.003, 0.08)]

    assert chance_to_decide(launches, 4, 0.01) < 0.05
    assert chance_to_decide([launch(0.2), launch(0.21)], 4, 0.01) > 0.99
    assert chance_to_decide(launches, 3, 0.01) == 0.0
    assert chance_to_decide([], 3, 0.01) == 1.0


# --- plans -------------------------------------------------------------------------------------------


def plan(error_of_minute: float, available_s: float, luck: Luck = UNKNOWN_LUCK) -> ConfirmationPlan:
    return plan_confirmation(
        lambda race_s: error_of_minute * math.sqrt(60.0 / race_s), 12.0, available_s, 0.01, luck=luck
    )


@pytest.mark.parametrize("error", [0.001, 0.008, 0.036])
@pytest.mark.parametrize("available_s", [40.0, 90.0, 300.0, 1200.0])
def test_a_plan_fits_the_budget(error: float, available_s: float) -> None:
    found = plan(error, available_s)

    assert 2 <= found.launches <= 8
    assert 3.0 <= found.race_s <= 60.0
    assert found.launches * (found.race_s + 12.0) <= available_s + 1e-6


def test_more_time_finds_smaller_gains() -> None:
    gains = [plan(0.008, seconds).smallest_gain for seconds in (60.0, 120.0, 300.0)]

    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 0.025


def test_a_quiet_machine_whose_launches_are_known_takes_little_of_a_large_budget() -> None:
    found = plan(0.0015, 1200.0, luck=Luck(0.005, 10.0))

    assert found.smallest_gain <= 0.015
    assert found.launches * (found.race_s + 12.0) < 200.0


def test_a_budget_too_small_for_two_races_has_no_plan() -> None:
    found = plan(0.008, 20.0)

    assert found.launches == 0
    assert math.isinf(found.smallest_gain)


def test_the_planned_gain_is_found_as_often_as_promised() -> None:
    found = plan(0.008, 150.0)
    error = 0.008 * math.sqrt(60.0 / found.race_s)
    dice = np.random.default_rng(8)

    told = [carry(dice, math.log1p(found.smallest_gain), error, 0.005, found.launches) for _ in range(80)]

    assert sum(t.decision == "change" for t in told) >= 56


def test_the_reported_interval_is_wider_than_no_decision_bound() -> None:
    assert find_level(2, 2, forced=True) < REPORTED


@pytest.mark.parametrize(
    ("log_gain", "doubt", "decision"),
    [(1.2, 0.0, "change"), (1.2, 0.7, "change"), (1.2, 1.3, None), (0.0, 0.0, "keep"), (0.0, 0.2, None)],
)
def test_doubt_of_a_mood_leaves_only_changes_that_stand_above_it(
    log_gain: float, doubt: float, decision: str | None
) -> None:
    launches = [launch(log_gain, 0.001)] * 6

    found = look_at(launches, planned=6, min_gain=0.01, forced=False, doubt=doubt)

    assert found is not None
    assert found.decision == decision
