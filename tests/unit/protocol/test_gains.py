"""How gains read: the bound first, factors from 30 % on, and no figures where they mean nothing."""

import pytest

from advisor.protocol.answers.advice import Interval, continue_command


@pytest.mark.parametrize(
    ("ratio", "low", "high", "told"),
    [
        (3.1, 1.8, 5.4, "at least 1.8x faster, most likely 3.1x (95 % CI 1.8x … 5.4x)"),
        (1.035, 1.011, 1.06, "at least +1.1 %, most likely +3.5 % (95 % CI +1.1 … +6.0 %)"),
        (1.34, 1.31, 1.38, "at least 1.31x faster, most likely 1.34x (95 % CI 1.31x … 1.38x)"),
        (0.993, 0.966, 1.021, "most likely −0.7 % (95 % CI −3.4 … +2.1 %)"),
        (3.4, 0.9, 12.0, "most likely 3.4x (95 % CI 0.90x … 12x)"),
        (1.1, 0.0, 466_212.0, "most likely +10.0 % (95 % CI −100.0 … over 1000x)"),
    ],
)
def test_interval_says_first_what_is_sure(ratio: float, low: float, high: float, told: str) -> None:
    assert Interval(ratio=ratio, low=low, high=high, rounds=8, sessions=2).describe() == told


def test_interval_says_what_it_rests_on() -> None:
    one = Interval(ratio=1.0, low=0.9, high=1.1, rounds=1, sessions=1)
    assert one.describe_basis() == "1 interleaved round in 1 launch"
    assert one.model_copy(update={"rounds": 8, "sessions": 4}).describe_basis() == (
        "8 interleaved rounds in 4 launches"
    )


def test_command_that_continues_has_whole_minutes() -> None:
    assert continue_command("abc") == "advisor tune --continue abc --minutes 5"
    assert continue_command("abc", 20.0) == "advisor tune --continue abc --minutes 1"
    assert continue_command("abc", 400.0) == "advisor tune --continue abc --minutes 7"
