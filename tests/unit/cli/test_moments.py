"""Moments as people type them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer

from advisor.cli.exits import CommandFailed
from advisor.cli.moments import read_minutes, read_moment

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90m", NOW - timedelta(minutes=90)),
        ("36h", NOW - timedelta(hours=36)),
        (" 7d ", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(days=14)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T09:30", datetime(2026, 11, 1, 9, 30, tzinfo=UTC)),
        ("2026-11-01T09:30+02:00", datetime(2026, 11, 1, 9, 30, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_moment_is_read_as_it_is_typed(text: str, moment: datetime) -> None:
    assert read_moment(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "7", "7y", "-7d", "2026-13-01", "999999w"])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        read_moment(text, NOW)
    assert "36h" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "minutes"), [("5", 5.0), ("2.5", 2.5), ("90s", 1.5), ("5m", 5.0), ("2h", 120.0)]
)
def test_minutes_are_read_with_a_unit_or_without(text: str, minutes: float) -> None:
    assert read_minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "-5", "nan", "inf", "soon", "5q", "0s"])
def test_what_is_no_time_to_measure_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_minutes(text)
