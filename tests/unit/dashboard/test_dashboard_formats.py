"""Numbers, times and foreign text as people read them."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from advisor.dashboard import formats
from advisor.dashboard.views.gain_bars import draw_gain_bars
from advisor.protocol.plain_text import clean_text
from advisor.protocol.standing import SoFar

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"), [(1842.4, "1\u202f842"), (12.34, "12.3"), (0.5, "0.500"), (0, "0"), (-3.2, "-3.20")]
)
def test_number_keeps_three_digits(value: float, text: str) -> None:
    assert formats.number(value) == text


def test_rate_never_shows_more_digits_than_its_interval() -> None:
    assert formats.rate(1842.44, 13.7) == "1\u202f842 ± 14"
    assert formats.rate(1.2345, 0.034) == "1.23 ± 0.03"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (9 * 2**20, "9 MB"),
        (25.5 * 2**20, "25.5 MB"),
        (101 * 2**30, "101 GB"),
        (2**40, "1 TB"),
        (1000, "0.977 KB"),
    ],
)
def test_size_has_three_digits_and_no_zeros_behind_them(count: float, text: str) -> None:
    assert formats.size(count) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"), [(88e9, "88 GB/s"), (999.6e6, "1 GB/s"), (2**20, "1.05 MB/s"), (0, "0 MB/s")]
)
def test_data_rate_is_decimal_as_links_are_sold(bytes_per_s: float, text: str) -> None:
    assert formats.data_rate(bytes_per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(9, "9 s"), (61, "1 min 01 s"), (3840, "1 h 04 min"), (200_000, "2 d 7 h"), (59.6, "1 min 00 s")],
)
def test_duration_uses_its_two_largest_units(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text


def test_age_of_a_moment_in_the_future_is_zero() -> None:
    assert formats.age(NOW + timedelta(seconds=5), NOW) == "0 s ago"
    assert formats.age(NOW - timedelta(hours=30), NOW) == "1 d ago"


def test_clean_text_drops_terminal_codes_and_direction_marks() -> None:
    dirty = "\x1b[31mred\x1b[0m \x1b]0;title\x07\u202egnp.exe\x00\ttab\r\nnext"
    assert clean_text(dirty) == "red gnp.exe\ttab\nnext"


def test_clean_tail_keeps_the_last_lines() -> None:
    assert formats.clean_tail("a\nb\nc\n", lines=2) == "b\nc"


def test_signed_milliseconds_of_nothing_is_zero() -> None:
    assert formats.signed_milliseconds(0.0000001) == "0"
    assert formats.signed_milliseconds(-0.0111) == "−11.1"


def test_gains_of_a_table_lie_on_one_axis_around_no_change() -> None:
    known = SoFar(ratio=2.0, low=1.6, high=2.5, races=4, launches=2)
    slower = SoFar(ratio=0.8, low=0.7, high=0.9, races=4, launches=2)
    unknown = SoFar(ratio=2.0, low=0.2, high=20.0, races=1, launches=1)
    first, second, *none = draw_gain_bars([known, slower, unknown, None])
    assert first is not None
    assert second is not None
    assert none == [None, None]
    assert (first.high, first.tone, second.tone) == (100.0, "good", "bad")
    # Twice as fast is as far from the middle as half as fast.
    assert first.likely - 50 == pytest.approx(50 * math.log(2) / math.log(2.5), abs=0.1)
    assert second.low < second.likely < second.high < 50 < first.low


def test_axis_of_small_gains_is_not_theirs_alone() -> None:
    (bar,) = draw_gain_bars([SoFar(ratio=1.01, low=1.005, high=1.015, races=9, launches=3)])
    assert bar is not None
    assert bar.high < 60
