"""The lever of sync_batch_norm: batch-norm layers turn into synchronised ones in place, and back."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch
from torch.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm

from ..lever import Evidence, Lever, Training, read_switch

KNOB = "sync_batch_norm"
CONVERTED = (BatchNorm1d, BatchNorm2d, BatchNorm3d)
"""Subclasses of these may compute something else, and are left alone."""


class SyncBatchNormalization(Lever):
    """Only the class of a module changes: its parameters, statistics, hooks and place in the model stay the same."""

    knobs = (KNOB,)
    changes_training = knobs

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._changed: List[Tuple[Any, type]] = []
        self._seen: List[Tuple[Any, Any]] = []
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        if self._device.type != "cuda":
            return {KNOB: "The job trains on CPU, and torch synchronises batch norm on GPUs only."}
        modules = training.list_modules()
        if any(isinstance(module, SyncBatchNorm) for module in modules):
            return {KNOB: "The script synchronises its batch norm itself."}
        if not any(type(module) in CONVERTED for module in modules):
            return {KNOB: "The model has no BatchNorm1d, 2d or 3d layer that could be synchronised."}
        return {}

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: any(isinstance(module, SyncBatchNorm) for module in training.list_modules())}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence = Evidence()
        for module, original in self._changed:
            module.__class__ = original
            del module.process_group
        self._changed = []
        try:
            if read_switch(values.get(KNOB, False)):
                for ddp in training.replicas:
                    self._convert(ddp)
            elif KNOB in values:
                self._evidence.consumed[KNOB] = "Off, like the baseline."
        except ValueError as error:
            self._evidence.not_consumed[KNOB] = f"{KNOB} was not set: {error}."

    def _convert(self, ddp: Any) -> None:
        for module in ddp.module.modules():
            if type(module) in CONVERTED:
                self._changed.append((module, type(module)))
                module.__class__ = SyncBatchNorm
                module.process_group = ddp.process_group

    def begin_timing(self) -> None:
        # Copies on the device: reading them here would hold up the first timed step.
        self._seen = [
            (module, module.num_batches_tracked.clone())
            for module, _ in self._changed
            if module.num_batches_tracked is not None
        ]

    def prove(self) -> Evidence:
        if not self._changed:
            return self._evidence
        used = sum(bool(module.num_batches_tracked > before) for module, before in self._seen)
        sentence = (
            f"{len(self._changed)} batch-norm layers are synchronised; {used} of them normalised batches."
        )
        if used or not self._seen:
            self._evidence.consumed[KNOB] = sentence
        else:
            self._evidence.not_consumed[KNOB] = sentence
        return self._evidence
