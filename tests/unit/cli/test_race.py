"""`advisor race`: what it says of two commands, and what it refuses."""

import pytest

from advisor.cli.commands.measuring.race import describe, judge
from advisor.protocol.answers.advice import Interval, Verdict
from tests.unit.cli import advices

COMMANDS = ["torchrun a.py", "torchrun b.py"]


def test_the_faster_command_is_told_with_both_rates() -> None:
    found = judge(advices.a_change())
    told = describe(found, COMMANDS)
    assert (
        told[0] == "RESULT   B is faster than A: at least +5.9 %, most likely +8.4 % (95 % CI +5.9 … +10.7 %)"
    )
    assert told[1].split() == ["A", "1,586", "samples/s", "torchrun", "a.py"]
    assert told[2].split() == ["B", "1,719", "samples/s", "torchrun", "b.py"]


@pytest.mark.parametrize(
    ("gain", "verdict", "begin"),
    [
        ((0.8, 0.75, 0.85), Verdict.KEEP, "A is faster; of B against A: most likely −20.0 %"),
        ((1.0, 0.995, 1.005), Verdict.KEEP, "B is not worth a change against A: most likely"),
        ((1.02, 0.95, 1.09), Verdict.UNDECIDED, "not decided, of B against A: most likely"),
    ],
)
def test_other_answers_are_told_as_what_they_are(
    gain: tuple[float, float, float], verdict: Verdict, begin: str
) -> None:
    interval = Interval(ratio=gain[0], low=gain[1], high=gain[2], rounds=8, sessions=2)
    found = judge(advices.a_keep().model_copy(update={"verdict": verdict, "gain": interval}))
    assert describe(found, COMMANDS)[0].startswith(f"RESULT   {begin}")


def test_what_was_not_measured_says_so() -> None:
    told = describe(judge(advices.unconfirmed()), COMMANDS)
    assert "not measured" in told[2]
