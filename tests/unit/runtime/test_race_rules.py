"""Whose turn it is, who is given up, and when a race is over: the decisions of rank 0, without ranks."""

from __future__ import annotations

import importlib
import math
import random
from typing import Any

import pytest

pytest.importorskip("torch")
order = importlib.import_module("fleet_advisor_runtime.races.order")
verdicts = importlib.import_module("fleet_advisor_runtime.races.verdicts")
judging = importlib.import_module("fleet_advisor_runtime.races.judge")
arms = importlib.import_module("fleet_advisor_runtime.races.arm")
results = importlib.import_module("fleet_advisor_runtime.races.results")
recorder = importlib.import_module("fleet_advisor_runtime.observe.recorder")

MESSAGE: dict[str, Any] = {
    "race_id": "r",
    "arms": [{"block_id": "a"}, {"block_id": "b", "overrides": {"k": 1}}],
}


class Clock:
    def measure(self, start: float, end: float) -> float:
        return end - start


def make_step(length_s: float, flag: int = 0, samples: int = 0) -> Any:
    step = recorder.StepMarks(0.0)
    step.end, step.flag, step.samples = length_s, flag, samples
    return step


def make_arm(place: int, warm_s: float = 0.1, **fields: Any) -> Any:
    """An arm that was entered."""
    arm = arms.Arm(order.ArmOrder("ab"[place]), place, **fields)
    arm.warm = [make_step(warm_s) for _ in range(4)]
    arm.switches_s = [0.001]
    return arm


def run(judge: Any, field: list[Any], draw: Any, samples: int = 0) -> tuple[Any, int]:
    """Carries a race to its end without ranks; `draw(arm)` is the time of its next step. The last course, cycles."""
    course, cycles = judge.plan(), 0
    while not course.is_over:
        while cycles < course.until:
            for arm in [arm for arm in field if arm.races]:
                left = course.steps - len(arm.timed)
                for _ in range(min(course.segment_steps, left) if left > 0 else course.segment_steps):
                    arm.book([make_step(draw(arm), samples=samples)], cycles, 1)
            cycles += 1
        course = judge.look(cycles, course)
    return course, cycles


def test_a_race_is_read_with_what_is_missing_at_its_default() -> None:
    found = order.parse_race({**MESSAGE, "rules": {"min_steps": 8, "target_error": None, "newer": 1}}, {})
    assert [(arm.block_id, dict(arm.overrides)) for arm in found.arms] == [("a", {}), ("b", {"k": 1})]
    assert found.rules == order.RaceRules(min_steps=8)


def test_what_strategies_are_held_against_stands_in_every_arm_that_does_not_set_it() -> None:
    found = order.parse_race(MESSAGE, {"k": 5, "j": 2})
    assert [dict(arm.overrides) for arm in found.arms] == [{"k": 5, "j": 2}, {"k": 1, "j": 2}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": {"give_up_ratio": 0}}, "give_up_ratio is 0"),
        ({"rules": {"target_error": math.inf}}, "target_error is inf"),
        ({"rules": {"min_steps": 9, "max_steps": 8}}, "9 to 8 steps"),
        ({"arms": []}, "at least one arm"),
        ({"arms": [{"block_id": "a"}, {"block_id": "a"}]}, "another block for each"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        order.parse_race({**MESSAGE, **changes}, {})


def test_turns_are_random_the_same_everywhere_and_reversed_every_other_time() -> None:
    names = list("abcde")
    for cycle in range(0, 40, 2):
        there = order.order_turns("race", cycle, names)
        assert sorted(there) == names
        assert order.order_turns("race", cycle, names) == there
        assert order.order_turns("race", cycle + 1, names) == there[::-1]
    firsts = {order.order_turns("race", cycle, names)[0] for cycle in range(0, 80, 2)}
    assert firsts == set(names)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("period", range(2, 13))
@pytest.mark.parametrize("steps", [5, 10, 40])
def test_what_a_script_does_every_few_steps_falls_into_no_arms_turns_alone_and_out_of_none(
    period: int, steps: int, count: int
) -> None:
    """Every so many steps one takes three times as long, and an arm that is switched to makes one that is not timed."""
    places: list[list[int]] = [[] for _ in range(count)]
    now, before = 0, -1
    for cycle in range(400):
        for arm in order.order_turns("race", cycle, range(count)):
            now, before = now + (arm != before), arm
            places[arm] += range(now, now := now + steps)
    for own in places:
        for phase in range(period):
            mean = sum(3.0 if (place + phase) % period == 0 else 1.0 for place in own) / len(own)
            assert mean == pytest.approx(1.0 + 2.0 / period, rel=0.03)


@pytest.mark.parametrize(
    ("steps", "starts_slowly", "hopeless"),
    [
        ([2.5], False, True),
        ([1.9], False, False),  # new buckets may cost that much, once
        ([0.3, 1.0], False, True),
        ([5.0, 0.3], False, False),
        ([0.3, 1.0, 0.1], False, False),  # a stall, not its pace
        ([0.3, 0.35, 0.34], False, True),
        ([60.0, 60.0, 0.1], True, False),
        ([60.0, 60.0, 1.0], True, True),
    ],
)
def test_a_new_arm_ten_times_slower_is_known_after_a_step_or_two(
    steps: list[float], starts_slowly: bool, hopeless: bool
) -> None:
    assert verdicts.is_hopeless(steps, 0.1, 2.0, starts_slowly) is hopeless


def test_a_hiccup_gives_no_arm_of_millisecond_steps_up() -> None:
    assert not verdicts.is_hopeless([0.08], 0.0015, 2.0, False)
    assert not verdicts.is_hopeless([0.08, 0.04], 0.0015, 2.0, False)
    assert verdicts.is_hopeless([0.5], 0.0015, 2.0, False)


def test_equally_fast_arms_are_hardly_ever_given_up_and_slow_ones_soon() -> None:
    generator = random.Random(1)

    def draw(mean_s: float) -> list[float]:
        return verdicts.cap_steps(
            [
                mean_s * math.exp(generator.gauss(0, 0.1)) * (5 if generator.random() < 0.05 else 1)
                for _ in range(10)
            ]
        )

    def count(mean_s: float) -> int:
        return sum(verdicts.is_surely_slower(draw(mean_s), draw(0.1), 1.2) for _ in range(1000))

    assert count(0.1) == 0
    assert count(0.12) <= 25
    assert count(0.18) >= 900


def test_the_error_of_a_ratio_is_not_claimed_smaller_than_it_is() -> None:
    generator = random.Random(2)
    claims, found = [], []
    for _ in range(500):
        pairs = [
            (0.1 * math.exp(generator.gauss(0, 0.05)), 0.1 * math.exp(generator.gauss(0, 0.05)))
            for _ in range(8)
        ]
        claims.append(verdicts.estimate_error(*zip(*pairs, strict=True)))
        found.append(sum(math.log(a / b) for a, b in pairs) / 8)
    truth = math.sqrt(sum(value**2 for value in found) / len(found))
    assert truth < sum(claims) / len(claims) < 1.5 * truth
    assert verdicts.estimate_error([0.1] * 3, [0.1] * 3) == math.inf
    assert verdicts.estimate_error([0.1, None, 0.1, 0.1], [0.1] * 4) == math.inf


def test_a_race_lasts_for_its_time_within_the_fewest_and_most_steps() -> None:
    for step_s, steps in ((0.1, 30), (1.0, 12), (0.001, 200)):
        field = [make_arm(0, step_s), make_arm(1, step_s)]
        judge = judging.Judge(order.RaceRules(min_steps=12, target_s=3.0), field, Clock(), False)
        run(judge, field, lambda arm, step_s=step_s: step_s)
        assert abs(len(field[0].timed) - steps) <= 5, step_s
        assert len(field[0].timed) == len(field[1].timed)


def test_a_race_ends_once_the_ratio_is_known() -> None:
    generator = random.Random(3)
    field = [make_arm(0), make_arm(1)]
    rules = order.RaceRules(target_s=1000.0, max_steps=1000, target_error=0.02)
    run(
        judging.Judge(rules, field, Clock(), False),
        field,
        lambda arm: 0.1 * math.exp(generator.gauss(0, 0.05)),
    )
    assert 20 <= len(field[0].timed) <= 160


def test_a_slow_arm_leaves_and_the_others_go_on() -> None:
    field = [make_arm(0), make_arm(1, 0.2)]
    rules = order.RaceRules(give_up_ratio=1.5, target_s=20.0)
    run(judging.Judge(rules, field, Clock(), False), field, lambda arm: 0.2 if arm.place else 0.1)
    assert field[1].given_up
    assert len(field[1].timed) <= 20
    assert rules.min_steps <= len(field[0].timed) <= rules.min_steps + 5


@pytest.mark.parametrize(("step_s", "is_slow"), [(0.2, True), (0.11, False)])
def test_an_arm_in_a_launch_of_its_own_leaves_once_it_surely_cannot_win(step_s: float, is_slow: bool) -> None:
    arm = make_arm(0, step_s)
    rules = order.RaceRules(target_s=20.0, least_samples_per_s=8 / 0.12)
    run(judging.Judge(rules, [arm], Clock(), False), [arm], lambda arm: step_s, samples=8)
    assert arm.given_up is is_slow
    assert (len(arm.timed) <= rules.segment_steps) is is_slow


def test_the_first_arm_is_never_given_up() -> None:
    field = [make_arm(0, 2.0), make_arm(1)]
    rules = order.RaceRules(give_up_ratio=1.5, min_steps=4, target_s=1.0)
    run(judging.Judge(rules, field, Clock(), False), field, lambda arm: 0.1 if arm.place else 2.0)
    assert not field[0].given_up


@pytest.mark.parametrize(
    ("fields", "restores", "steps"),
    [
        ({}, False, 5),
        ({"switches_s": [0.5, 0.09]}, False, 9),  # nine steps of 0.1 s for 0.09 s of switching
        ({"least_segment": 40}, False, 40),
        ({"lead_in": 3}, False, 10),
        ({"period": 4}, False, 8),
        ({"period": 4}, True, 48),
    ],
)
def test_segments_are_as_long_as_switching_asks_for(
    fields: dict[str, Any], restores: bool, steps: int
) -> None:
    other = make_arm(1)
    for name, value in fields.items():
        setattr(other, name, value)
    rules = order.RaceRules(target_s=20.0)
    judge = judging.Judge(rules, [make_arm(0), other], Clock(), restores)
    assert judge.plan().segment_steps == steps


@pytest.mark.parametrize(("is_strained", "lead_in", "steps"), [(True, 9, 40), (False, 1, 5)])
def test_arms_that_share_a_strained_queue_have_longer_turns(
    is_strained: bool, lead_in: int, steps: int
) -> None:
    field = [make_arm(0, asked=8, workers=2), make_arm(1, asked=8, workers=2, is_strained=is_strained)]
    course = judging.Judge(order.RaceRules(target_s=20.0), field, Clock(), False).plan()
    assert (course.lead_in, course.segment_steps, course.workers) == (lead_in, steps, 2 * is_strained)


@pytest.mark.parametrize("target_error", [None, 0.01])
@pytest.mark.parametrize("steps", [23, 60])
def test_turns_of_a_lone_arm_in_one_go_are_the_same_turns(target_error: float | None, steps: int) -> None:
    generator = random.Random(4)
    times = [0.1 * math.exp(generator.gauss(0, 0.05)) for _ in range(200)]
    found = []
    for in_one_go in (False, True):
        arm, cycles, looks = make_arm(0), 0, []
        rules = order.RaceRules(min_steps=20, max_steps=steps, target_s=60.0, target_error=target_error)
        judge = judging.Judge(rules, [arm], Clock(), False)
        course = judge.plan()
        while not course.is_over and not (arm.timed and arm.count_batches() >= course.steps):
            while cycles < course.until:
                turns = course.count_turns(cycles, arm.count_batches()) if in_one_go else 1
                left, length = course.steps - arm.count_batches(), turns * course.segment_steps
                first = len(arm.timed)
                last = first + (min(length, left) if left > 0 else length)
                arm.book([make_step(time_s) for time_s in times[first:last]], cycles, course.segment_steps)
                cycles += turns
            looks.append(len(arm.timed))
            course = judge.look(cycles, course)
        found.append((arm.cycles, cycles, looks))
    assert found[0] == found[1]
    assert len(set(found[0][0])) == found[0][1]


def race_beside_a_queue(eaten: float, noise: float, seed: int) -> Any:
    """The second arm after a race; it waits for a loader once it has eaten what the first one's turn has left."""
    generator = random.Random(seed)
    field = [make_arm(0), make_arm(1)]
    rules = order.RaceRules(min_steps=20, max_steps=10_000, target_s=40.0, long_turn_steps=60)
    judge = judging.Judge(rules, field, Clock(), False)
    course, cycles = judge.plan(), 0
    while not course.is_over:
        while cycles < course.until:
            for arm in [arm for arm in field if arm.races]:
                for place in range(60 if cycles == judging.LONG_CYCLE else course.segment_steps):
                    pace = eaten if arm.place and place < 20 else 1.0
                    arm.book([make_step(0.1 * pace * math.exp(generator.gauss(0, noise)))], cycles, 1)
            cycles += 1
        course = judge.look(cycles, course)
    return field[1]


def test_an_arm_that_lives_on_what_another_left_it_gets_launches_of_its_own() -> None:
    for seed in range(5):
        assert "launches of its own" in race_beside_a_queue(0.7, 0.1, seed).relaunch_needed
        assert not race_beside_a_queue(0.7, 0.1, seed).races


def test_no_arm_gets_them_for_noise() -> None:
    assert not any(race_beside_a_queue(1.0, 0.15, seed).relaunch_needed for seed in range(100))


def test_steps_with_a_flag_do_not_count() -> None:
    arm = make_arm(0)
    for index in range(12):
        arm.book([make_step(0.1, flag=2 if index == 5 else 0)], index // 4, 1)
    assert arm.count_kept() == 11
    assert len(arm.read_times(Clock())) == 11
    assert arm.read_cycles(Clock(), 4) == [pytest.approx(0.1)] * 3 + [None]
    arm.forget_after(2)
    assert len(arm.timed) == len(arm.cycles) == 8


def test_long_turn_that_says_something_else_than_all_short_ones_moves_an_arm() -> None:
    dice = random.Random(3)
    first = [0.1 * math.exp(dice.gauss(0.0, 0.01)) for _ in range(12)]
    fed = [0.05 * math.exp(dice.gauss(0.0, 0.01)) for _ in range(12)]
    assert verdicts.is_moved(fed, first, [0.1] * 8, [0.1] * 8)
    assert not verdicts.is_moved(fed, first, [0.05] * 8, [0.1] * 8)


def test_long_turn_in_one_of_the_moods_that_short_ones_met_moves_no_arm() -> None:
    """The first arm takes 20 or 400 ms a step from turn to turn, as threads that fight for cores do."""
    steady = [0.02] * 12
    moody = [0.4, 0.02, 0.4, 0.4, 0.4, 0.02, 0.4, 0.4, 0.02, 0.4, 0.4, 0.4]
    assert not verdicts.is_moved(steady, moody, [0.02] * 8, [0.02] * 8)
    assert not verdicts.is_moved(steady, [0.02, *moody[:2], 0.02, *moody[5:]], [0.02] * 8, [0.4] * 8)
    # A single turn may be a mishap: the long one says what no other short one says.
    assert verdicts.is_moved(steady, [0.4, *[0.1] * 11], [0.02] * 8, [0.4] * 8)
