"""Which results of a race cannot be true."""

import pytest

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import BlockPlan, RacePlan
from agent.sessions.plausibility import find_implausible

RACE = RacePlan(arms=tuple(BlockPlan(block_id=arm, trial_number=1) for arm in ("b1", "b2")))
HONEST = {"steps": 3, "step_time_s": (0.1, 0.2, 0.1), "samples_per_step": 8, "samples": 24, "wall_s": 0.4}
NO_STEPS = {"steps": 0, "step_time_s": (), "wall_s": 0.0, "samples": 0}


def _doubt(race_id="b1", race=RACE, elapsed_s=1.0, arms=("b1", "b2"), **changes):
    """The doubt about a race whose second arm is changed so."""
    results = {arm: BlockResult(**HONEST) for arm in arms}
    results[arms[-1]] = BlockResult(**(HONEST | changes))
    return find_implausible(race_id, results, race, elapsed_s)


def test_honest_results_are_believed():
    assert _doubt() == ""
    assert _doubt(segments=(2, 0, 1)) == ""
    assert _doubt(**NO_STEPS, relaunch_needed="It needs a launch.") == ""
    assert _doubt(**NO_STEPS, same_as="b1") == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"race": None}, "no race was asked for"),
        ({"race_id": "b2"}, "race b1 was asked for"),
        ({"arms": ("b1",)}, "names the arms ['b1'], where ['b1', 'b2'] were asked for"),
        ({"arms": ("b1", "b2", "b3")}, "names the arms"),
        ({"segments": (2, 2)}, "segments of 4 steps together hold 3"),
        ({"same_as": "b1"}, "timed all the same"),
        (NO_STEPS | {"same_as": "b2"}, "another race's"),
        ({"steps": 1000}, "in arm b2 there are 1000 steps and the times of 3"),
        ({"step_time_s": (0.1, -0.2, 0.1)}, "negative"),
        ({"samples_per_step": -8}, "negative"),
        ({"step_time_s": (1e-9, 1e-9, 1e-9)}, "a step took 1e-09 s"),
        ({"wall_s": 60.0}, "only 1 s passed"),
        ({"step_time_s": (0.1, 90.0, 0.1)}, "only 1 s passed"),
        ({"elapsed_s": 0.2}, "its steps took 0.8 s, but only 0.2 s passed"),
    ],
)
def test_forged_result_is_refused_with_its_reason(changes, words):
    sentence = _doubt(**changes)
    assert words in sentence
    assert "cannot be true" in sentence
