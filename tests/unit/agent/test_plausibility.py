"""Which results of a block cannot be true."""

import pytest

from advisor.protocol.trials import BlockPlan, BlockResult
from agent.plausibility import find_implausible

PLAN = BlockPlan(block_id="b1", trial_number=1)
HONEST = {"steps": 3, "step_time_s": (0.1, 0.2, 0.1), "samples_per_step": 8, "samples": 24, "wall_s": 0.4}


def _doubt(block_id="b1", plan=PLAN, elapsed_s=1.0, **changes):
    return find_implausible(block_id, BlockResult(**(HONEST | changes)), plan, elapsed_s)


def test_honest_results_are_believed():
    assert _doubt() == ""
    assert _doubt(steps=0, step_time_s=(), wall_s=0.0, samples=0, relaunch_needed="It needs a launch.") == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": None}, "no block was asked for"),
        ({"block_id": "b2"}, "block b1 was asked for"),
        ({"steps": 1000}, "names 1000 steps and the times of 3"),
        ({"step_time_s": (0.1, -0.2, 0.1)}, "negative"),
        ({"samples_per_step": -8}, "negative"),
        ({"step_time_s": (1e-9, 1e-9, 1e-9)}, "a step took 1e-09 s"),
        ({"wall_s": 60.0}, "only 1 s passed"),
        ({"step_time_s": (0.1, 90.0, 0.1)}, "only 1 s passed"),
    ],
)
def test_forged_result_is_refused_with_its_reason(changes, words):
    sentence = _doubt(**changes)
    assert words in sentence
    assert "cannot be true" in sentence
