"""When a strategy close to the best is in hand for good, and how near to the best the judged ones are."""

import math

import pytest
from judged_strategies import Judged
from time_to_best import describe_surface, time_until_close

from advisor.protocol.knobs.changes import Changes

BEST, NEAR, FAR = {"nccl_comm_num": 2}, {"nccl_comm_num": 3}, {"nccl_comm_num": 4}
BEYOND = {"nccl_comm_num": 7}
JUDGED = Judged(
    {
        Changes({}): [0.0, 0.0],
        Changes(BEST): [0.28, 0.32],
        Changes(NEAR): [0.27, 0.31],
        Changes(FAR): [0.20, 0.20],
        Changes(BEYOND): [0.40, 0.40],
    },
    frozenset({Changes({}), Changes(BEST), Changes(NEAR), Changes(FAR)}),
)


def test_time_counts_from_where_the_strategy_in_hand_stays_close_to_the_end() -> None:
    assert time_until_close(JUDGED, [(5.0, {}), (9.0, NEAR), (12.0, FAR), (20.0, BEST), (31.0, NEAR)]) == 20.0
    assert time_until_close(JUDGED, [(5.0, BEST), (9.0, FAR)]) == math.inf
    assert time_until_close(JUDGED, []) == math.inf


def test_a_strategy_that_no_race_finished_gives_all_of_it_away() -> None:
    assert JUDGED.regret({"nccl_comm_num": 1}) == 1.0
    assert JUDGED.regret(BEST) == 0.0
    assert JUDGED.regret({}) == pytest.approx(1.0 - math.exp(-0.3))


def test_close_is_two_per_cent_or_as_much_as_the_judging_races_can_tell() -> None:
    assert JUDGED.is_close(NEAR)
    assert JUDGED.error(NEAR) == pytest.approx(
        0.0, abs=1e-12
    )  # what all share in a pass is no error of a distance
    assert not JUDGED.is_close(FAR)
    unsure = Judged(
        {Changes(BEST): [0.30, 0.30], Changes(FAR): [0.20, 0.32]}, frozenset({Changes(BEST), Changes(FAR)})
    )
    assert unsure.error(FAR) == pytest.approx(0.06)
    assert unsure.regret(FAR) == pytest.approx(1.0 - math.exp(-0.04))
    assert unsure.is_close(FAR)


def test_what_only_one_way_could_choose_raises_no_bar_for_the_others() -> None:
    assert JUDGED.best == BEST
    assert JUDGED.regret(BEYOND) < 0.0


def test_a_peer_that_never_held_a_close_strategy_needs_longer_than_it_was_given() -> None:
    runs = [
        (0, "advisor", [(30.0, BEST)]),
        (0, "optuna", [(50.0, NEAR)]),
        (0, "ray", [(60.0, {}), (120.0, FAR)]),
    ]
    row = describe_surface("made", ("advisor", "optuna", "ray"), runs, JUDGED)
    assert row.endswith("| 30 s | 50 s | never | 0.60 | < 0.25 |")
