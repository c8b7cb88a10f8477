"""How gains read: the bound first, factors from 30 % on, and no figures where they mean nothing."""

import pytest

from advisor.protocol.answers.advice import Interval, continue_command
from advisor.protocol.gains import describe_ratio, spell_gain, spell_likely, spell_range


@pytest.mark.parametrize(
    ("ratio", "low", "high", "told"),
    [
        (3.1, 1.8, 5.4, "at least 1.8x faster, most likely 3.1x (95 % CI 1.8x … 5.4x)"),
        (1.035, 1.011, 1.06, "at least +1.1 %, most likely +3.5 % (95 % CI +1.1 … +6.0 %)"),
        (1.34, 1.31, 1.38, "at least 1.31x faster, most likely 1.34x (95 % CI 1.31x … 1.38x)"),
        (0.993, 0.966, 1.021, "most likely −0.7 % (95 % CI −3.4 … +2.1 %)"),
        (3.04, 1.859, 5.41, "at least 1.8x faster, most likely 3.0x (95 % CI 1.8x … 5.5x)"),
        (1.04, 1.0119, 1.0601, "at least +1.1 %, most likely +4.0 % (95 % CI +1.1 … +6.1 %)"),
        (12.4, 9.96, 18.01, "at least 9.9x faster, most likely 12x (95 % CI 9.9x … 19x)"),
        (0.99, 0.9701, 1.0199, "most likely −1.0 % (95 % CI −3.0 … +2.0 %)"),
        (15.0, 2.96, 79.0, "at least 2.9x faster, measured too roughly to say how much more"),
        (0.2, 0.05, 0.6004, "at most −39.9 %, measured too roughly to say how much less"),
        (15.0, 2.9, 79.0, "at least 2.9x faster, measured too roughly to say how much more"),
        (0.2, 0.05, 0.6, "at most −40.0 %, measured too roughly to say how much less"),
        (2.4, 1.077, 5.8, "at least +7.7 %, measured too roughly to say how much more"),
        (1.4, 1.08, 1.8, "at least +8.0 %, most likely 1.4x (95 % CI 1.0x … 1.8x)"),
        (3.4, 0.9, 12.0, "measured too roughly for a figure"),
        (63.0, 0.09, 4_000.0, "measured too roughly for a figure"),
        (1.1, 0.0, 466_212.0, "measured too roughly for a figure"),
    ],
)
def test_interval_says_first_what_is_sure(ratio: float, low: float, high: float, told: str) -> None:
    assert Interval(ratio=ratio, low=low, high=high, rounds=8, sessions=2).describe() == told


@pytest.mark.parametrize(("ratio", "low", "high"), [(63.0, 0.09, 4e3), (15.0, 2.9, 79.0), (1.1, 0.0, 1e200)])
def test_no_spelling_tells_an_end_that_nothing_supports(ratio: float, low: float, high: float) -> None:
    for spell in (spell_likely, spell_range, describe_ratio):
        told = spell(ratio, low, high)
        assert spell_gain(ratio) not in told
        assert spell_gain(high) not in told


def test_programs_are_told_how_much_of_an_interval_is_known() -> None:
    wide = Interval(ratio=15.0, low=2.9, high=79.0, rounds=8, sessions=2)
    assert wide.model_dump(mode="json")["quality"] == "bounded"
    assert Interval.model_validate(wide.model_dump(mode="json")) == wide


def test_interval_says_what_it_rests_on() -> None:
    one = Interval(ratio=1.0, low=0.9, high=1.1, rounds=1, sessions=1)
    assert one.describe_basis() == "1 interleaved round in 1 launch"
    assert one.model_copy(update={"rounds": 8, "sessions": 4}).describe_basis() == (
        "8 interleaved rounds in 4 launches"
    )
    assert one.model_copy(update={"rounds": 0, "sessions": 4}).describe_basis() == "4 launches"


def test_command_that_continues_has_whole_minutes() -> None:
    assert continue_command("abc") == "advisor tune --continue abc --minutes 5"
    assert continue_command("abc", 20.0) == "advisor tune --continue abc --minutes 1"
    assert continue_command("abc", 400.0) == "advisor tune --continue abc --minutes 7"
