"""The lever of num_iteration_per_run: how many steps the host may queue ahead of the GPU before it waits."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping

import torch

from ..lever import Evidence, Lever, Training, read_count

KNOB = "num_iteration_per_run"
UNBOUNDED = 100
"""The knob's largest value: the host never waits, as torch does by itself."""


class RunAhead(Lever):
    """The script's own synchronisations (`loss.item()` in every step, say) are its own: no lever takes them away."""

    knobs = (KNOB,)
    serves_plain = True
    serves_sharded = True
    serves_engines = True

    def __init__(self, device: torch.device, make_event: Callable[[], Any] = torch.cuda.Event) -> None:
        """`make_event` returns an object with a CUDA event's `record`, `query` and `synchronize`."""
        self._device = device
        self._make_event = make_event
        self.is_on = False
        self._wanted = UNBOUNDED
        self._queued: Deque[Any] = deque()
        self._waits = 0
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        if self._device.type == "cuda":
            return {}
        return {KNOB: "The job trains on CPU, where every step ends before the next one begins."}

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: UNBOUNDED} if self._device.type == "cuda" else {}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence = Evidence()
        self._queued.clear()
        self.is_on, self.lead_in = False, 1
        if KNOB not in values:
            return
        try:
            self._wanted = read_count(values[KNOB], 1)
        except ValueError as error:
            self._evidence.not_consumed[KNOB] = f"{KNOB} was not set: {error}."
            return
        if self._wanted >= UNBOUNDED:
            self._evidence.consumed[KNOB] = "The host never waits for the GPU, as in the baseline."
        else:
            self.is_on = True
            # The queue of steps fills first.
            self.lead_in = self._wanted + 1

    def end_step(self, training: Training) -> None:
        event = self._make_event()
        # Of the model's device: the current one is GPU 0 on every rank of a script that never says set_device.
        event.record(torch.cuda.current_stream(self._device))
        self._queued.append(event)
        if len(self._queued) > self._wanted:
            oldest = self._queued.popleft()
            if not oldest.query():
                self._waits += 1
                oldest.synchronize()

    def begin_timing(self) -> None:
        self._waits = 0

    def prove(self) -> Evidence:
        if self.is_on and self._waits:
            self._evidence.consumed[KNOB] = (
                f"The host waited for the GPU {self._waits} times in the timed steps."
            )
        elif self.is_on:
            sentence = f"The host was never more than {self._wanted} steps ahead: it had nothing to wait for."
            self._evidence.consumed[KNOB] = self._evidence.no_effect[KNOB] = sentence
        return self._evidence
