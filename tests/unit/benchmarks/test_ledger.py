"""The ledger of blind races: who is equal is known by the dice, and what is kept says what was told."""

import copy

import pytest
from ledger import BLIND, RACES, draw, read_rows
from ledger_figures import bound, check, is_shown, planted


def test_of_each_two_races_one_is_an_equal_pair_and_nothing_else_differs() -> None:
    for number in range(0, 200, 2):
        pairs = [draw(number), draw(number + 1)]
        gains = [planted({"a": a, "b": b}) for a, b in pairs]
        assert sorted(gain > 0.0 for gain in gains) == [False, True]
        assert max(gains) == pytest.approx(max(a["extra"] - b["extra"] for a, b in pairs))
        assert all({**a, "extra": 0.0} == {**b, "extra": 0.0} for a, b in pairs)


def test_kept_steps_say_what_was_told_and_other_steps_do_not() -> None:
    rows = [row for row in read_rows(BLIND / RACES) if row.get("verdict") == "change"]
    told = rows[:2]
    assert check(told) == []
    other = copy.deepcopy(told)
    for row in other:
        for block in row["history"]["blocks"]:
            if "overrides" in block["plan"]:
                block["result"]["ticks"] = [2 * ticks for ticks in block["result"]["ticks"]]
    assert [sentence.split(":")[0] for sentence in check(other)] == [
        f"{row['way']} {row['number']}" for row in told
    ]


def test_no_false_gain_among_two_hundred_is_at_most_one_and_a_half_percent() -> None:
    assert bound(0, 200) == pytest.approx(1.0 - 0.05 ** (1 / 200), abs=1e-9)
    assert bound(3, 3) == 1.0


def test_welch_shows_what_launches_agree_on_only() -> None:
    assert is_shown(([0.10, 0.11, 0.10], [0.0, 0.01, 0.0]), 0.05)
    assert not is_shown(([0.10, -0.10, 0.10], [0.0, 0.01, 0.0]), 0.05)
