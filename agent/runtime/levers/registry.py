"""All levers of one rank: switches a whole strategy at once and collects the evidence for each of its knobs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from . import bucket_plan
from .gradient_reduction import GradientReduction
from .launched import prove_launched
from .lever import Evidence, Lever, Training
from .local_sgd import LocalSgd
from .memory_fraction import MemoryFraction
from .threads import Threads


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
        self._all: List[Lever] = [self.reduction, LocalSgd(clock), Threads(), MemoryFraction(device)]
        self._on: List[Lever] = []
        self._owner = {knob: lever for lever in self._all for knob in lever.knobs}
        self._inexact = {knob for lever in self._all for knob in lever.changes_training}
        self._cold = cold
        self._refusals: Dict[str, str] = {}
        self._unknown: Dict[str, str] = {}
        self._given: Tuple[str, ...] = ()

    @property
    def replaces_reduction(self) -> bool:
        """Whether DDP's own record of communication means nothing under the strategy in force."""
        return any(lever.replaces_reduction for lever in self._on)

    @property
    def period(self) -> int:
        """Timed steps must be a multiple of it. Levers with a period exclude each other."""
        return max((lever.period for lever in self._on), default=1)

    @property
    def least_warm_up(self) -> int:
        return max((lever.least_warm_up for lever in self._on), default=0)

    def list_refusals(self, training: Training) -> Dict[str, str]:
        """Collective. Knobs that this job cannot use, each with its sentence."""
        for lever in self._all:
            self._refusals.update(lever.list_refusals(training))
        return dict(self._refusals)

    def observe(self, training: Training) -> Dict[str, Any]:
        """The baseline: every knob as the script itself has set it."""
        observed: Dict[str, Any] = {}
        for lever in self._all:
            observed.update(lever.observe(training))
        return observed

    def needs_snapshot(self, overrides: Mapping[str, Any]) -> bool:
        return any(knob in self._inexact for knob in overrides)

    def switch(self, overrides: Mapping[str, Any], training: Training) -> None:
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
            lever.switch({knob: taken[knob] for knob in lever.knobs if knob in taken}, training)
        self._on = [lever for lever in self._all if lever.is_on]

    def before_forward(self, ddp: Any) -> None:
        for lever in self._on:
            lever.before_forward(ddp)

    def after_forward(self, ddp: Any) -> None:
        for lever in self._on:
            lever.after_forward(ddp)

    def end_step(self, training: Training) -> None:
        for lever in self._on:
            lever.end_step(training)

    def end_block(self, training: Training) -> None:
        for lever in self._on:
            lever.end_block(training)
        self._on = []

    @property
    def work_in_steps(self) -> bool:
        """Whether any lever has something to do at step boundaries."""
        return bool(self._on)

    def measure_boundary_s(self) -> float:
        return sum(lever.measure_boundary_s() for lever in self._on)

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
