"""`advisor calibrate`: what a race of a command against itself says of the machine."""

import pytest

from advisor.cli.commands.measuring.calibrate import describe, judge

from .test_race import make_answer


def test_half_width_says_what_is_told_and_four_times_the_minutes_halve_it() -> None:
    found = judge(make_answer((1.0, 0.985, 1.0152)), 5.0)
    assert found.half_width == pytest.approx(0.0152, abs=1e-3)
    assert found.tells == pytest.approx(0.0152 * 1.43, abs=1e-3)
    assert found.longer["20"] == pytest.approx(found.tells / 2, rel=0.02)
    assert found.fail_below == pytest.approx(1 - 0.0152 * 1.65, abs=2e-3)
    assert not found.is_biased
    assert describe(found)[0] == "RESULT   This machine can tell 2.2 % in 5 minutes"


def test_interval_without_one_is_told_as_one_calibration_in_twenty() -> None:
    found = judge(make_answer((1.02, 1.01, 1.03)), 5.0)
    assert found.is_biased
    assert describe(found)[-1].startswith("CAREFUL")


def test_nothing_measured_tells_nothing() -> None:
    found = judge(make_answer(None, because="The script fails."), 5.0)
    assert found.tells is None
    assert describe(found, "The script fails.")[-1].endswith("The script fails.")
