"""All levers of one rank: switches a whole strategy at once and collects the evidence for each of its knobs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from . import bucket_plan
from .gradient_reduction import GradientReduction
from .launched import prove_launched
from .lever import Evidence, Lever
from .local_sgd import LocalSgd
from .memory_fraction import MemoryFraction
from .threads import Threads

INEXACT = ("fp16_allreduce", "fp16_allreduce_dtype", "localsgd", "localsgd_k_steps", "localsgd_begin_step")
"""Knobs that change what is computed: the model is saved before a block with one of them, and restored after it."""


class Levers:
    """A strategy is the baseline plus overrides; nothing of the one before stays in force."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_world_size: int,
        device: torch.device,
        clock: Any,
        cold: Mapping[str, Any],
    ) -> None:
        self.reduction = GradientReduction(rank, world_size, local_world_size, device)
        self.local_sgd = LocalSgd(clock)
        self.threads = Threads()
        self._all: List[Lever] = [self.reduction, self.local_sgd, self.threads, MemoryFraction(device)]
        self._owner = {knob: lever for lever in self._all for knob in lever.knobs}
        self._cold = cold
        self._refusals: Dict[str, str] = {}
        self._unknown: Dict[str, str] = {}
        self._given: Tuple[str, ...] = ()

    def list_refusals(self, replicas: List[Any]) -> Dict[str, str]:
        """Collective. Knobs that this job cannot use, each with its sentence."""
        for ddp in replicas:
            self.reduction.observe(ddp)
            self._refusals.update(self.reduction.refuse_for(ddp))
        for lever in self._all:
            self._refusals.update(lever.list_refusals())
        return dict(self._refusals)

    def switch(self, overrides: Mapping[str, Any], replicas: List[Any]) -> None:
        """May raise RelaunchNeeded; then the levers before it are switched, and the next switch puts all right."""
        self._unknown = {}
        self._given = tuple(overrides)
        if any(knob in bucket_plan.KNOBS for knob in overrides):
            # The launched bucket size has been replaced on purpose: it is no longer to be proved.
            self._given += bucket_plan.KNOBS
        taken: Dict[str, Any] = {}
        for knob, value in overrides.items():
            if knob in self._refusals:
                self._unknown[knob] = self._refusals[knob]
            elif knob in self._owner:
                taken[knob] = value
            elif knob not in self._cold or self._cold[knob] != value:
                self._unknown[knob] = f"{knob} cannot be switched in a live process by this runtime."
        for lever in self._all:
            lever.switch({knob: taken[knob] for knob in lever.knobs if knob in taken}, replicas)

    def begin_timing(self) -> None:
        for lever in self._all:
            lever.begin_timing()

    def prove(self, backend: str, replicas: List[Any]) -> Evidence:
        cold = {knob: value for knob, value in self._cold.items() if knob not in self._given}
        evidence = prove_launched(cold, backend, replicas)
        for lever in self._all:
            evidence.add(lever.prove())
        evidence.not_consumed.update(self._unknown)
        return evidence


def needs_snapshot(overrides: Mapping[str, Any]) -> bool:
    return any(knob in INEXACT for knob in overrides)
