"""Races without training, the halves of a recording, and what the page on searches may say."""

import math
import random
from statistics import fmean
from typing import Any

import pytest
from played_race import Heat, play_race
from quality_report import ADVISOR, compare, list_complete, summarise
from surfaces import read_surface

from advisor.protocol.measured.results import RaceRules

CHANGES = {"nccl_comm_num": 2}


class Steady(Heat):
    """Arms of equal steps each; the first one after a swap takes twice as long."""

    def __init__(self, *step_s: float) -> None:
        self._step_s = step_s

    def step(self, arm: int, since: int) -> float:
        return self._step_s[arm] * (2.0 if since == 0 else 1.0)


def make_run(method: str, surface: str, seed: int, regret: float) -> dict[str, Any]:
    return {
        "method": method, "surface": surface, "seed": seed, "regrets": {"10": regret},
        "by_time": {}, "arms": 12, "seconds": 1.0,
    }  # fmt: skip


def test_a_race_takes_turns_and_leaves_the_first_step_of_a_turn_out() -> None:
    race = play_race("r", [1, 1], Steady(0.1, 0.08), RaceRules(target_s=2.0))
    assert [set(arm.times) for arm in race.arms] == [{0.1}, {0.08}]
    assert [sum(arm.segments) for arm in race.arms] == [len(arm.times) for arm in race.arms]
    assert len(race.arms[0].segments) == len(race.arms[1].segments) >= 4
    assert race.seconds > sum(sum(arm.times) for arm in race.arms)


def test_a_race_gives_a_slow_arm_up() -> None:
    race = play_race("r", [1, 1, 1], Steady(0.1, 2.0, 0.09), RaceRules(give_up_ratio=1.3))
    assert [arm.given_up for arm in race.arms] == [False, True, False]
    assert 0 < len(race.arms[1].times) < 6


def test_a_race_of_periods_times_whole_ones() -> None:
    race = play_race("r", [1, 4], Steady(0.1, 0.1), RaceRules(), restores=True)
    assert all(count % 4 == 0 for count in race.arms[1].segments)


def test_one_half_of_the_repeats_is_replayed_and_the_other_is_the_truth() -> None:
    base, two = [], []
    for turn, gain in enumerate((0.2, 0.1, 0.3, 0.4)):
        for place, (blocks, step_s) in enumerate(((base, 0.1), (two, 0.1 * math.exp(-gain)), (base, 0.1))):
            blocks.append({"step_time_s": [step_s] * 24, "session": 0, "order": 3 * turn + place})
    surface = read_surface(
        {
            "knobs": {"nccl_comm_num": [1, 2]}, "baseline": {"nccl_comm_num": 1},
            "cells": [{"changes": {}, "blocks": base}, {"changes": CHANGES, "blocks": two}],
        }
    )  # fmt: skip
    for seed in range(8):
        divided, other = surface.split(seed), surface.split(seed ^ 1)
        shown = fmean(r.deviation for r in divided.find(CHANGES).repeats)
        assert shown + (divided.find(CHANGES).truth or 0.0) == pytest.approx(0.5)
        assert other.find(CHANGES).truth == pytest.approx(shown)
        assert divided.find({}).truth == 0.0


def test_the_floor_grows_with_the_noise() -> None:
    def floor(noise: float) -> float:
        dice = random.Random(4)
        cells: list[dict[str, Any]] = [{"changes": {}, "blocks": [{"step_time_s": [0.1] * 24}]}]
        for count in (2, 3, 4):
            blocks = [
                {"step_time_s": [0.1] * 24, "anchor_log_ratio": 0.2 + dice.gauss(0.0, noise)}
                for _ in range(4)
            ]
            cells.append({"changes": {"nccl_comm_num": count}, "blocks": blocks})
        data = {"knobs": {"nccl_comm_num": [1, 2, 3, 4]}, "baseline": {"nccl_comm_num": 1}, "cells": cells}
        return read_surface(data).floor

    assert 0.0 < floor(0.01) < floor(0.04)


def test_errors_are_clustered_by_surface() -> None:
    runs = [
        make_run("random", name, seed, regret)
        for name, regret in (("a", 0.1), ("b", 0.3))
        for seed in range(9)
    ]
    figure = summarise(runs, 10)
    assert figure is not None
    assert figure.mean == pytest.approx(0.2)
    assert figure.error == pytest.approx(0.1)  # of two surfaces, however many seeds they have


def test_only_methods_that_ran_everywhere_share_an_average_and_pairs_are_compared() -> None:
    runs = [make_run(ADVISOR, name, 0, 0.1) for name in "ab"] + [make_run("grid", "a", 0, 0.15)]
    assert list_complete(runs, [ADVISOR, "grid"]) == [ADVISOR]
    against = compare(runs, "grid", 10)
    assert against is not None
    assert against.mean == pytest.approx(0.05)
