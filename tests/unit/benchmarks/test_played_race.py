"""Races without training, the known truth of a recording, and what the page on searches may say."""

import math
import random
from statistics import fmean, stdev
from typing import Any

import pytest
from played_race import Heat, play_race
from quality_report import ADVISOR, compare, list_complete, summarise
from surfaces import read_surface

from advisor.protocol.measured.results import RaceRules

CHANGES = {"nccl_comm_num": 2}
FUSED_OFF = {"fuse_all_reduce_ops": False}


class Steady(Heat):
    """Arms of equal steps each; the first one after a swap takes twice as long."""

    def __init__(self, *step_s: float) -> None:
        self._step_s = step_s

    def step(self, arm: int, since: int) -> float:
        return self._step_s[arm] * (2.0 if since == 0 else 1.0)


def make_run(method: str, surface: str, seed: int, regret: float) -> dict[str, Any]:
    return {
        "method": method, "surface": surface, "seed": seed, "regrets": {"9": regret},
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


def make_noisy(noise: float, repeats: int) -> dict[str, Any]:
    """A surface whose strategies are all 20 % faster than the baseline, as noisy blocks show it."""
    dice = random.Random(4)
    cells: list[dict[str, Any]] = [{"changes": {}, "blocks": [{"step_time_s": [0.1] * 24}]}]
    for place in range(1, 8):
        changes = ({"nccl_comm_num": 1 + place % 4} if place % 4 else {}) | (FUSED_OFF if place > 3 else {})
        blocks = [
            {"step_time_s": [0.1] * 24, "anchor_log_ratio": 0.2 + dice.gauss(0.0, noise)}
            for _ in range(repeats)
        ]
        cells.append({"changes": changes, "blocks": blocks})
    return {
        "knobs": {"nccl_comm_num": [1, 2, 3, 4], "fuse_all_reduce_ops": [True, False]},
        "baseline": {"nccl_comm_num": 1, "fuse_all_reduce_ops": True, "sync_nccl_allreduce": False},
        "cells": cells,
    }


def test_the_best_of_a_noisy_recording_is_no_truth() -> None:
    data = make_noisy(0.06, 2)
    surface = read_surface(data)
    seen = max(fmean(b["anchor_log_ratio"] for b in c["blocks"]) for c in data["cells"] if c["changes"])
    assert surface.best.truth is not None
    assert abs(surface.best.truth - 0.2) < 0.8 * (seen - 0.2)


def test_every_race_of_a_pair_draws_new_noise_around_the_truth() -> None:
    surface = read_surface(make_noisy(0.03, 4))
    launch, cell = surface.launch(random.Random(1)), surface.find(CHANGES)
    ratios = []
    for _ in range(60):
        heat = launch.race([surface.find({}), cell])
        ratios.append(math.log(heat.step(0, 1) / heat.step(1, 1)))
    assert fmean(ratios) == pytest.approx(cell.truth, abs=0.02)
    assert stdev(ratios) == pytest.approx(math.sqrt(2.0) * surface.race_noise, rel=0.35)
    assert surface.race_noise > 0.015


def test_errors_are_clustered_by_surface() -> None:
    runs = [
        make_run("random", name, seed, regret)
        for name, regret in (("a", 0.1), ("b", 0.3))
        for seed in range(9)
    ]
    figure = summarise(runs, 9)
    assert figure is not None
    assert figure.mean == pytest.approx(0.2)
    assert figure.error == pytest.approx(0.1)  # of two surfaces, however many seeds they have


def test_only_methods_that_ran_everywhere_share_an_average_and_pairs_are_compared() -> None:
    runs = [make_run(ADVISOR, name, 0, 0.1) for name in "ab"] + [make_run("grid", "a", 0, 0.15)]
    assert list_complete(runs, [ADVISOR, "grid"]) == [ADVISOR]
    against = compare(runs, "grid", 9)
    assert against is not None
    assert against.mean == pytest.approx(0.05)
    assert against.verdict == "not decidable"  # one surface tells nothing of others


def test_a_difference_is_decided_by_its_interval_over_surfaces() -> None:
    runs = [make_run(ADVISOR, name, 0, 0.1) for name in "abcd"]
    runs += [
        make_run("grid", name, 0, 0.1 + worse)
        for name, worse in zip("abcd", (0.04, 0.05, 0.06, 0.05), strict=True)
    ]
    against = compare(runs, "grid", 9)
    assert against is not None
    assert against.verdict == "advisor better"
    assert against.half > 3.0 * against.error  # Student's t with 3 degrees of freedom
