"""The lever of micro_batches: forward and backward in parts of the script's batch, which stays what it was."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from torch.nn.parallel import DistributedDataParallel

from ..lever import Evidence, Lever, Training, read_count
from ..reduction.gradient_merge import find_in_backward
from .split_check import explain_no_split
from .split_forward import CHECKS, KNOB, SplitForward


class MicroBatches(Lever):
    """Loss, clipping, scaling, schedules and logs stay the script's own, once per batch."""

    knobs = (KNOB,)
    changes_training = knobs

    def __init__(self, splitting: SplitForward) -> None:
        self._splitting = splitting
        self._is_set = False
        self._rejected: Dict[str, str] = {}

    def list_refusals(self, training: Training) -> Dict[str, str]:
        if self._splitting.parts > 1:
            return {}  # it was launched with it: what stands against it is told with the proof
        if sentence := find_in_backward(training):
            return {KNOB: f"{sentence}: each part of a batch would be a step of its own."}
        for ddp in training.replicas:
            if (
                getattr(type(ddp).forward, "__wrapped__", None) is None
                and type(ddp) is not DistributedDataParallel
            ):
                return {
                    KNOB: f"{type(ddp).__name__} has a forward of its own around DistributedDataParallel's."
                }
            if sentence := explain_no_split(ddp):
                return {KNOB: sentence}
        return {}

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: 1}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._rejected, self._is_set = {}, KNOB in values
        self.least_warm_up, self._splitting.parts = 0, 1
        try:
            self._splitting.parts = read_count(values.get(KNOB, 1), 1)
            self.least_warm_up = CHECKS + 1 if self._splitting.parts > 1 else 0
        except ValueError as error:
            self._rejected = {KNOB: f"{KNOB} was not set: {error}."}

    def begin_timing(self) -> None:
        self._splitting.begin_timing()

    def prove(self) -> Evidence:
        splitting, evidence = self._splitting, Evidence(not_consumed=dict(self._rejected))
        if not self._is_set or self._rejected:
            return evidence
        if splitting.parts == 1:
            evidence.no_effect[KNOB] = evidence.consumed[KNOB] = (
                "Each batch is computed whole, as the script has it."
            )
        elif splitting.refusal or not splitting.forwards:
            evidence.not_consumed[KNOB] = splitting.refusal or "No batch of two samples or more was computed."
        else:
            evidence.consumed[KNOB] = splitting.describe()
        return evidence
