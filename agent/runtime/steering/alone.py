"""What of a strategy each rank can have by itself, in a real training whose ranks find no moment to meet."""

from __future__ import annotations

from typing import Any, List, Mapping

from ..levers.computation.garbage_collection import GarbageCollection
from ..levers.computation.threads import Threads
from ..levers.lever import Evidence, Lever, Training
from ..link.rank_output import say

PROOF_STEPS = 10
"""Fewest steps that the proof looks at."""


class AloneStrategy:
    """Threads and collections of garbage: no model is touched, and no rank waits for what another one has in force."""

    def __init__(self, changes: Mapping[str, Any], is_told: bool) -> None:
        self._training, self._is_told = Training([], []), is_told
        self._levers: List[Lever] = []
        self._steps, self._due = 0, PROOF_STEPS
        for lever in (Threads(), GarbageCollection()):
            refused = lever.list_refusals(self._training)
            values = {knob: changes[knob] for knob in lever.knobs if knob in changes and knob not in refused}
            if values:
                lever.switch(values, self._training)
                self._levers.append(lever)
                self._due = max([self._due, *(v + 1 for v in values.values() if isinstance(v, int))])

    @property
    def is_empty(self) -> bool:
        return not self._levers

    def end_step(self) -> None:
        """After each step of the optimizer that closes one."""
        for lever in self._levers:
            if lever.is_on:
                lever.end_step(self._training)
        self._steps += 1
        if self._steps == self._due and self._is_told:
            self._tell()

    def _tell(self) -> None:
        evidence = Evidence()
        for lever in self._levers:
            evidence.add(lever.prove())
        for knob, why in evidence.consumed.items():
            say(f"  {knob} is in force all the same, on each rank by itself: {why}")
        for knob, why in evidence.not_consumed.items():
            say(f"  NOT in force: {knob}. {why}")
