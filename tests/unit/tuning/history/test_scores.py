"""Scores against the baseline: unbiased, with errors that hold what is not known."""

from statistics import fmean, stdev

import pytest

from advisor.protocol.base import Value
from advisor.protocol.measured.trials import Outcome, Purpose
from advisor.tuning.history.scores import LAUNCH_LUCK, RACE_LUCK, Score, score_trials
from tests.unit.tuning.raced import BASE, Raced

SMALL: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
COLD: dict[str, Value] = {"NCCL_SOCKET_NTHREADS": 4}


def score(raced: Raced, changes: dict[str, Value] = SMALL) -> Score:
    return score_trials(raced.record).throughput[raced.find(Purpose.SEARCH, changes)]


def test_a_race_beside_the_baseline_is_the_score() -> None:
    found = score(Raced().launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.2)))

    assert found.mean == pytest.approx(0.2, abs=4 * found.error)
    assert RACE_LUCK <= found.error < 2 * RACE_LUCK


def test_errors_tell_how_far_scores_lie_from_the_truth() -> None:
    found = [
        score(Raced(seed=seed, spread=0.1).launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.2)))
        for seed in range(60)
    ]
    means = [one.mean for one in found]
    # The mean within three of its errors, and the spread within three standard errors of 60 (9 %) and the race's luck.
    assert fmean(means) == pytest.approx(0.2, abs=3 * stdev(means) / 60**0.5)
    assert stdev(means) == pytest.approx(fmean(one.error for one in found), rel=0.35)


def test_races_of_one_strategy_are_put_together() -> None:
    once = Raced().launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.2))
    error = score(once).error

    again = score(once.race(BASE, (Purpose.SEARCH, SMALL, 0.2)))

    assert again.error == pytest.approx(error / 2**0.5, rel=0.2)


def test_a_strategy_in_a_launch_of_its_own_is_held_against_the_nearest_baselines() -> None:
    raced = Raced().launch().race(BASE)
    raced.launch(COLD).race((Purpose.SEARCH, COLD, 0.2))
    raced.launch().race(BASE)

    found = score(raced, COLD)

    assert found.mean == pytest.approx(0.2, abs=0.02)
    assert found.error >= LAUNCH_LUCK


def test_a_strategy_that_was_given_up_has_a_score_that_hardly_claims_a_place() -> None:
    raced = Raced().launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, -0.7), cycles=2, given_up=True)
    raced.close(Purpose.SEARCH, SMALL, Outcome.PRUNED)

    found = score(raced)

    assert found.mean == pytest.approx(-0.7, abs=0.05)
    assert found.error >= 0.1


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.INEFFECTIVE, Outcome.DIVERGED])
def test_a_strategy_that_failed_has_none(outcome: Outcome) -> None:
    raced = Raced().launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.5))
    raced.close(Purpose.SEARCH, SMALL, outcome)

    assert score_trials(raced.record).throughput == {}


def test_races_of_the_verdict_do_not_change_what_the_search_found() -> None:
    raced = Raced().launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.2))
    before = score(raced)

    raced.launch().race(BASE, (Purpose.CONFIRM, SMALL, 0.0))

    assert score(raced) == before
