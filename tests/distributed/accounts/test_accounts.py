"""What ranks are said to do with their time, of trainings that keep a clock of their own (benchmarks/accounts.py)."""

import pytest
from account_cases import NAMED
from accounts import measure

pytestmark = [pytest.mark.distributed, pytest.mark.alone]

ROUGHLY = 0.2
"""Of a step: machines that run tests do other things as well. On a quiet one it is 0.05."""


def test_the_cause_is_named_and_the_shares_are_those_of_the_scripts_own_clock() -> None:
    found = measure(NAMED["late-loader"])
    assert found.is_right, (found.cause, found.sentence, found.told)
    assert found.worst < ROUGHLY, (found.where, found.told)
