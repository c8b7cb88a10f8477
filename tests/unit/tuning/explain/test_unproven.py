"""Why races whose interval lies above no gain do not prove it: the reason told is what held the verdict back."""

from dataclasses import replace

from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose, Trial
from advisor.tuning.explain.cases import Case
from advisor.tuning.measure.sequential import Look
from advisor.tuning.stages.confirmation import Confirmation
from advisor.tuning.stages.loss_guard import GuardFinding
from advisor.tuning.stages.moods import ByMood
from tests.unit.tuning.search_space import START

TRIAL = Trial(
    number=1, purpose=Purpose.CONFIRM, changes=Changes({"num_threads": 1}), because=".", created_at=START
)


def say(look: Look | None) -> str:
    confirmation = Confirmation(TRIAL.changes, (), look, (), 0.5, 0.05, ByMood())
    return Case(TRIAL, confirmation, None, GuardFinding(passed=True, sentence="")).say_unproven()


def test_a_mood_without_a_shown_gain_is_told_and_not_blamed_on_slow_steps() -> None:
    look = Look(mean=0.39, low=0.16, high=0.57, decision=None, launches=3, level=0.01, moods=2)
    assert say(look) == "your settings have several moods, and it is not shown to be faster in each of them"
    assert say(replace(look, moods=1, doubt=0.4)) == say(look), "nor where one of them was not met"
    assert say(replace(look, moods=1)) == "", "without moods there is no such excuse"
    assert "one launch raced it" in say(replace(look, launches=1))
    assert say(replace(look, decision="change")) == ""
    assert say(None) == ""
