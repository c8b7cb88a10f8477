"""What a strategy measured against its reference: one comparison for each race that both took part in."""

import pytest

from advisor.protocol.base import Value
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.history.comparisons import list_comparisons
from tests.unit.tuning.raced import BASE, Raced

SMALL: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
BOTH: dict[str, Value] = {**SMALL, "num_threads": 2}


def test_every_race_with_the_baseline_is_a_comparison() -> None:
    raced = Raced().launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.1))
    raced.race(BASE, (Purpose.SEARCH, BOTH, 0.0), (Purpose.SEARCH, SMALL, 0.1))

    found = list_comparisons(raced.record, Purpose.SEARCH, SMALL)

    assert [c.race for c in found] == [2, 3]
    for comparison in found:
        assert comparison.reference.plan.overrides == {}
        assert comparison.contrast.cycles == 16
        assert comparison.contrast.mean == pytest.approx(0.1, abs=5 * comparison.contrast.error)


def test_races_of_another_purpose_are_not_mixed_in() -> None:
    raced = Raced().launch().race(BASE, (Purpose.SEARCH, SMALL, 0.3))
    raced.launch().race(BASE, (Purpose.CONFIRM, SMALL, 0.1))

    (found,) = list_comparisons(raced.record, Purpose.CONFIRM, SMALL)

    assert (found.launch, found.race) == ("s1", 2)
    assert found.contrast.mean == pytest.approx(0.1, abs=0.01)


def test_a_reference_that_is_no_baseline_is_an_arm_of_the_same_race() -> None:
    raced = Raced().launch().race(BASE)
    raced.race((Purpose.REVERT, BOTH, 0.15), (Purpose.REVERT, SMALL, 0.1))

    (found,) = list_comparisons(raced.record, Purpose.REVERT, SMALL, against=BOTH)

    assert found.contrast.mean == pytest.approx(-0.05, abs=0.01)
    assert list_comparisons(raced.record, Purpose.REVERT, SMALL) == []


def test_arms_in_launches_of_their_own_are_compared_under_the_number_of_their_race() -> None:
    raced = Raced()
    for number in (1, 2):
        for arm in ((Purpose.CONFIRM, {}, 0.0), (Purpose.CONFIRM, SMALL, 0.1)):
            raced.launch(arm[1]).race(arm, number=number)

    found = list_comparisons(raced.record, Purpose.CONFIRM, SMALL, against={})

    assert [(c.race, c.launch, c.reference.session_id) for c in found] == [(1, "s1", "s0"), (2, "s3", "s2")]


def test_races_whose_ranks_drifted_apart_or_that_gave_no_step_are_left_out() -> None:
    raced = Raced().launch().race(BASE)
    raced.race(BASE, (Purpose.SEARCH, SMALL, 0.1), drifted="Rank 1 differs.")
    raced.race(BASE, (Purpose.SEARCH, SMALL, 0.1), same_as="b0")
    raced.race(BASE, (Purpose.SEARCH, SMALL, 0.1), relaunch_needed="Not here.")

    assert list_comparisons(raced.record, Purpose.SEARCH, SMALL) == []
