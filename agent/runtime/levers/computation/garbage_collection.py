"""The lever of num_iteration_per_drop_scope: Python's garbage is collected between steps, every so many of them."""

from __future__ import annotations

import gc
from typing import Any, Dict, Mapping

from ..lever import Evidence, Lever, Training, read_count

KNOB = "num_iteration_per_drop_scope"
YOUNG = 1
"""The generation to collect: a full collection walks every object of the process, which takes longer than a step."""
LATE = 100_000
"""New objects after which Python's own collector runs all the same: a long evaluation has no boundaries."""
OLD_SHARE = 0.25
"""Of what outlived the last full collection: when as much again has outlived young ones, the next is due (Python's)."""


class GarbageCollection(Lever):
    """1 is Python's own collector, which runs in the middle of a step whenever enough objects were made."""

    knobs = (KNOB,)
    serves_plain = True
    serves_sharded = True
    proves_state = True
    serves_engines = True

    def __init__(self) -> None:
        self.is_on = False
        self._wanted = 1
        self._steps: Dict[int, int] = {}
        """Steps under each interval: it goes on counting where arms of a race take turns."""
        self._collections = 0
        self._own_thresholds = gc.get_threshold()
        self._settled, self._grown = 0, 0
        """Objects that outlived the last full collection, and young ones since."""
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        if gc.isenabled():
            return {}
        return {
            KNOB: "The script has switched Python's garbage collector off, and decides itself when it runs."
        }

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: 1}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence = Evidence()
        if self.is_on and gc.get_threshold()[0] == LATE:  # else the script has set its own since
            gc.set_threshold(*self._own_thresholds)
        self.is_on = False
        if KNOB not in values:
            return
        try:
            self._wanted = read_count(values[KNOB], 1)
        except ValueError as error:
            self._evidence.not_consumed[KNOB] = f"{KNOB} was not set: {error}."
            return
        if self._wanted == 1:
            self._evidence.consumed[KNOB] = "Python's own collector, as in the baseline."
            return
        self.is_on = True
        self._own_thresholds = gc.get_threshold()
        gc.set_threshold(LATE, *self._own_thresholds[1:])

    def end_step(self, training: Training) -> None:
        self._steps[self._wanted] = self._steps.get(self._wanted, 0) + 1
        if self._steps[self._wanted] % self._wanted == 0:
            self._collect()
            self._collections += 1

    def _collect(self) -> None:
        young = sum(len(gc.get_objects(generation)) for generation in range(YOUNG + 1))
        self._grown += young - gc.collect(YOUNG)
        if self._grown > OLD_SHARE * self._settled:
            # What died among them stays for ever otherwise: whole models, where a script makes one after the other.
            gc.collect()
            self._settled, self._grown = len(gc.get_objects(YOUNG + 1)), 0

    def begin_timing(self) -> None:
        self._collections = 0

    def prove(self) -> Evidence:
        if self.is_on and gc.get_threshold()[0] != LATE:
            self._evidence.not_consumed[KNOB] = "The script set Python's own garbage collector anew."
        elif self.is_on:
            self._evidence.consumed[KNOB] = (
                f"Python's own collector waits for {LATE:,} new objects; {self._collections} collections between the "
                "timed steps."
            )
        return self._evidence
