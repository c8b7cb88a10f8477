"""When timing stops early: the checkpoints, the bound that gives a strategy up, and the error that is enough."""

from __future__ import annotations

import importlib
import math
import random

import pytest

pytest.importorskip("torch")
early_end = importlib.import_module("fleet_advisor_runtime.early_end")
block = importlib.import_module("fleet_advisor_runtime.block")
recorder = importlib.import_module("fleet_advisor_runtime.recorder")


class Clock:
    def measure(self, start: float, end: float) -> float:
        return end - start


def draw_steps(generator: random.Random, mean_s: float, count: int, spread: float = 0.05) -> list[float]:
    """Lognormal steps of which one in twenty takes half as long again, as in the comparison of the methods."""
    return [
        mean_s * math.exp(generator.gauss(0.0, spread)) * (1.5 if generator.random() < 0.05 else 1.0)
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("min_steps", "timed", "period", "give_up", "target", "expected"),
    [
        (20, 200, 1, None, None, []),
        (20, 200, 1, 0.1, None, [8, 18, 41, 92]),
        (20, 200, 1, None, 0.01, [20, 36, 65, 116]),
        (4, 200, 1, None, 0.01, [12, 25, 51, 104]),
        (20, 200, 1, 0.1, 0.01, [8, 20, 44, 95]),
        (20, 20, 1, 0.1, None, [8, 12, 18]),
        (20, 9, 1, 0.1, None, []),
        (20, 320, 16, 0.1, None, [128, 192, 288]),
        (50, 320, 16, None, 0.01, [192, 288]),
    ],
)
def test_checkpoints_are_few_whole_periods_and_not_close_to_the_end(
    min_steps: int,
    timed: int,
    period: int,
    give_up: float | None,
    target: float | None,
    expected: list[int],
) -> None:
    assert early_end.plan_checkpoints(min_steps, timed, period, give_up, target) == expected


def test_the_bound_is_the_one_of_the_formula() -> None:
    # Nine equal periods: the least spread of 2 % counts. s = 1.253 * 0.02 * sqrt(3) / 3 = 0.014468.
    expected = 0.1 * math.exp(-2.33 * math.sqrt(0.014468**2 + 0.015**2))
    assert early_end.bound_step_s([0.1] * 9) == pytest.approx(expected, rel=1e-4)


def test_a_strategy_as_fast_as_the_incumbent_is_hardly_ever_given_up_and_a_hopeless_one_always() -> None:
    # give_up_s stands for 0.90 of the incumbent's throughput: the incumbent itself takes 0.9 of that time.
    generator = random.Random(1)

    def count_given_up(mean_s: float) -> int:
        runs = [draw_steps(generator, mean_s, 12) for _ in range(1000)]
        return sum(early_end.judge_timing(run, True, 1.0, None) == early_end.GIVEN_UP for run in runs)

    # The comparison's table: none of the equally fast ones, 1 to 3 % of those at 0.90, all of those at 0.60.
    assert count_given_up(0.9) <= 2
    assert count_given_up(1.0) <= 40
    assert count_given_up(0.9 / 0.6) == 1000


def test_seven_periods_are_too_few_to_give_up() -> None:
    assert early_end.judge_timing([9.0] * 7, True, 1.0, None) == early_end.GO_ON
    assert early_end.judge_timing([9.0] * 8, False, 1.0, None) == early_end.GIVEN_UP


def test_the_step_time_is_known_only_after_the_fewest_steps_and_twelve_periods() -> None:
    assert early_end.judge_timing([1.0] * 12, True, None, 0.01) == early_end.KNOWN
    assert early_end.judge_timing([1.0] * 12, False, None, 0.01) == early_end.GO_ON
    assert early_end.judge_timing([1.0] * 11, True, None, 0.01) == early_end.GO_ON


def test_the_error_is_not_claimed_smaller_than_it_is() -> None:
    # 300 blocks of 60 steps: the error that they claim, against the spread of their own means.
    generator = random.Random(2)
    blocks = [[math.exp(generator.gauss(0.0, 0.05)) for _ in range(60)] for _ in range(300)]
    truth = 0.05 * 1.253 / math.sqrt(60)
    claimed = [early_end.estimate_error(steps) for steps in blocks]
    assert sum(claimed) / len(claimed) == pytest.approx(1.15 * truth, rel=0.15)
    assert sum(error < 0.6 * truth for error in claimed) <= 3


def test_batches_that_agree_by_chance_do_not_end_the_timing_of_noisy_steps() -> None:
    # Every batch of four has the median 1.05 although the steps scatter by half.
    steps = [1.0, 1.1, 0.5, 2.0] * 6
    assert early_end.estimate_error(steps) > 0.02


def make_step(start: float, length: float, flag: int = 0) -> object:
    step = recorder.StepMarks(start)
    step.end, step.flag = start + length, flag
    return step


def test_a_block_makes_up_for_the_period_after_a_checkpoint() -> None:
    order = block.Instruction("b", {}, min_steps=40, max_steps=40, give_up_s=1.0)
    found = block.Block(order, 5, period=2)
    found.plan_timing(40)
    assert found.checkpoints == [16, 24, 36]
    passed = []
    while len(found.timed) < found.timed_steps:
        found.book_timed(make_step(float(len(found.timed)), 0.5))
        if found.at_checkpoint and len(found.timed) < found.timed_steps:
            assert found.judge(Clock()) == early_end.GO_ON
            found.pass_checkpoint(early_end.GO_ON)
            passed.append(len(found.timed))
    # At 16, 24 + 2 and 36 + 4 steps: the two steps after each do not count.
    assert passed == [16, 26, 40]
    assert len(found.timed) == 46
    assert [index for index, step in enumerate(found.timed) if step.flag == recorder.INTERRUPTED] == [
        16,
        26,
        40,
    ]


def test_a_blocks_own_steps_decide_by_whole_periods() -> None:
    order = block.Instruction("b", {}, min_steps=40, max_steps=40, give_up_s=1.0)
    found = block.Block(order, 5, period=2)
    # Every second step averages: a period takes 1.5 s on the mean although its median step takes 0.5 s.
    for index in range(16):
        found.book_timed(make_step(float(index), 2.5 if index % 2 else 0.5))
    assert found.judge(Clock()) == early_end.GIVEN_UP
    found.pass_checkpoint(early_end.GIVEN_UP)
    assert found.given_up


@pytest.mark.parametrize("field", ["give_up_s", "target_error"])
@pytest.mark.parametrize("value", [0, -1.0, "much", float("inf")])
def test_a_limit_that_is_no_length_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is .*; it must be a number above 0, or missing"):
        block.parse_instruction({"block_id": "b", "overrides": {}, field: value})
