"""What a state of the training loses on the same batches as any other: steps of the script that learn nothing."""

from __future__ import annotations

from typing import Generator, List, Optional

from ..levers.lever import Training
from ..levers.reduction.gradient_merge import explain_no_gate
from ..loading.random_numbers import RandomNumbers
from ..observe.recorder import StepMarks
from .parts import RankParts

Steps = Generator[None, Optional[StepMarks], None]


READ_BEFORE = 2
"""Steps at the beginning of a check whose batches the script has read already: this one's, and the next one's where it
reads one ahead (accelerate)."""


def explain_no_check(training: Training) -> str:
    """Why updates cannot be held back for a check; "" when they can."""
    if training.precision.scalers:
        return "The script scales its loss: overflows skip steps, and accelerate's optimizers step behind the gate."
    return explain_no_gate(training)


class LossCheck:
    """The script itself computes the losses, in training mode.

    The strategy in force ends its segment, so that ranks which trained apart have their mean parameters; optimizers are
    held, and each step has the batch and torch's random numbers of the same step of the first check. A script that
    generates its batches with other random numbers gets others in every check: then the errors say so.
    """

    def __init__(self, parts: RankParts, steps: int) -> None:
        self._parts, self._steps = parts, steps
        self._random: List[RandomNumbers] = []
        self.at_start: List[StepMarks] = []
        """Under the saved state."""

    def run(self, found: List[StepMarks]) -> Steps:
        """Adds the steps to `found`; the strategy has to be switched to again after it."""
        parts, training = self._parts, self._parts.gather_training()
        parts.levers.end_segment(training)
        parts.levers.hold(training)
        parts.reading.begin_replay()
        for place in range(READ_BEFORE + self._steps):
            self._begin_step(place)
            step = yield
            if step is not None and place >= READ_BEFORE:
                found.append(step)
        self.end()

    def _begin_step(self, place: int) -> None:
        if place < len(self._random):
            self._random[place].restore()
        else:
            device = self._parts.device
            self._random.append(RandomNumbers([device.index or 0] if device.type == "cuda" else []))

    def end(self) -> None:
        """Also where the script ended inside."""
        self._parts.reading.end_replay()
        self._parts.levers.let_go()
