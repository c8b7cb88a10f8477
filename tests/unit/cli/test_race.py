"""`advisor race`: what it says of two commands, and what it refuses."""

import pytest

from advisor.cli.commands.measuring.race import describe
from advisor.protocol.answers.raced import Gain, RaceAnswer, RacedSide
from advisor.protocol.states import Verdict
from tests.unit.cli import advices


def make_answer(
    gain: tuple[float, float, float] | None, verdict: Verdict = Verdict.CHANGE, because: str = "Why."
) -> RaceAnswer:
    """An answer with this gain (likely, low, high)."""
    return RaceAnswer(
        job_id="j1",
        verdict=verdict,
        gain=gain and Gain(likely=gain[0], low=gain[1], high=gain[2], rounds=0, launches=4),
        because=because,
        what_to_do="Use it.",
        cost=advices.a_change().cost,
        a=RacedSide(command="torchrun a.py", rate=1586.0),
        b=RacedSide(command="torchrun b.py", rate=1586.0 * gain[0] if gain else None),
        verify_again="advisor race 'torchrun a.py' 'torchrun b.py'",
    )


def test_the_faster_command_is_told_with_both_rates() -> None:
    told = describe(make_answer((1.084, 1.059, 1.107)))
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
        ((1.27, 1.04, 1.49), Verdict.UNDECIDED, "not decided, of B against A: most likely +27.0 %"),
        ((2.0, 1.2, 7.0), Verdict.UNDECIDED, "not decided, of B against A: measured too roughly"),
    ],
)
def test_other_answers_are_told_as_what_they_are(
    gain: tuple[float, float, float], verdict: Verdict, begin: str
) -> None:
    assert describe(make_answer(gain, verdict))[0].startswith(f"RESULT   {begin}")


def test_what_was_not_measured_says_so() -> None:
    told = describe(make_answer(None, Verdict.UNDECIDED, "The script fails."))
    assert told[0] == "RESULT   The script fails."
    assert "not measured" in told[2]
