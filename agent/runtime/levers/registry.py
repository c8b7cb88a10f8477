"""All levers of one rank: switches a whole strategy at once and collects the evidence for each of its knobs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from ..reading import Reading
from ..sharded import find_kind
from . import bucket_plan
from .adaptive_local_sgd import AdaptiveLocalSgd
from .compilation import Compilation
from .convolutions import Convolutions
from .data_reading import DataReading
from .garbage_collection import GarbageCollection
from .gradient_merge import GradientMerge
from .gradient_reduction import GradientReduction
from .launched import observe_launched, prove_launched, refuse_launched
from .lever import Evidence, Lever, Training
from .local_sgd import LocalSgd
from .memory_fraction import MemoryFraction
from .mixed_precision import MixedPrecision
from .optimizer_fusion import OptimizerFusion
from .resharding import Resharding
from .run_ahead import RunAhead
from .step_gate import StepGate
from .sync_batch_norm import SyncBatchNormalization
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
        reading: Reading,
    ) -> None:
        self.reduction = GradientReduction(rank, world_size, local_world_size, device)
        self._compilation = Compilation(device)
        self._all: List[Lever] = [
            self.reduction,
            LocalSgd(clock),
            AdaptiveLocalSgd(clock),
            # A merged step is no step: nobody looks for an overflow in it.
            GradientMerge(),
            MixedPrecision(device),
            Threads(),
            MemoryFraction(device),
            DataReading(reading, device),
            Resharding(),
            # After the levers whose settings compiled code has built in: buckets and threads.
            SyncBatchNormalization(device),
            OptimizerFusion(),
            self._compilation,
            GarbageCollection(),
            RunAhead(device),
            Convolutions(device),
        ]
        self._on: List[Lever] = []
        self._gate = StepGate(self.may_step)
        self._owner = {knob: lever for lever in self._all for knob in lever.knobs}
        self._inexact = {knob for lever in self._all for knob in lever.changes_training}
        self._cold = cold
        self._device = device
        self._refusals: Dict[str, str] = {}
        self._unknown: Dict[str, str] = {}
        self._given: Tuple[str, ...] = ()

    @property
    def replaces_reduction(self) -> bool:
        """Whether DDP's own record of communication means nothing under the strategy in force."""
        return any(lever.replaces_reduction for lever in self._on)

    @property
    def averages_at_boundaries(self) -> bool:
        """Whether `measure_boundary_s` is all the communication there is."""
        return any(lever.averages_at_boundaries for lever in self._on)

    @property
    def needs_loss(self) -> bool:
        """Whether levers read this rank's last loss."""
        return any(lever.needs_loss for lever in self._on)

    @property
    def period(self) -> int:
        """Timed steps must be a multiple of it. Levers with a period exclude each other."""
        return max((lever.period for lever in self._on), default=1)

    @property
    def least_warm_up(self) -> int:
        return max(lever.least_warm_up for lever in self._all)

    @property
    def compiles(self) -> bool:
        """Whether the next steps may compile the model, which takes up to minutes."""
        return self._compilation.is_on

    def list_refusals(self, training: Training) -> Dict[str, str]:
        """Collective. Knobs that this job cannot use, each with its sentence."""
        if training.sharded:
            # The others act on DistributedDataParallel models, and this job has none.
            idle = [lever for lever in self._all if not lever.serves_sharded]
            self._all = [lever for lever in self._all if lever.serves_sharded]
            sentence = f"It acts on DistributedDataParallel; this model is sharded by {find_kind(training.sharded[0])}."
            self._refusals.update({knob: sentence for lever in idle for knob in lever.knobs})
        self._refusals.update(refuse_launched(self._cold))
        for lever in self._all:
            self._refusals.update(lever.list_refusals(training))
        return dict(self._refusals)

    def observe(self, training: Training) -> Dict[str, Any]:
        """The baseline: every knob as the script itself has set it."""
        observed = observe_launched(self._cold)
        for lever in self._all:
            observed.update(lever.observe(training))
        return observed

    def needs_snapshot(self, overrides: Mapping[str, Any]) -> bool:
        return any(knob in self._inexact and knob not in self._refusals for knob in overrides)

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
        self._gate.guard(training.optimizers if any(lever.decides_steps for lever in self._on) else [])

    def before_forward(self, ddp: Any) -> None:
        for lever in self._on:
            lever.before_forward(ddp)

    def after_forward(self, ddp: Any) -> None:
        for lever in self._on:
            lever.after_forward(ddp)

    def convert_output(self, output: Any) -> Any:
        for lever in self._on:
            output = lever.convert_output(output)
        return output

    def before_backward(self) -> float:
        """What the loss counts in this backward pass."""
        factor = 1.0
        for lever in self._on:
            factor *= lever.before_backward()
        return factor

    def after_backward(self) -> None:
        for lever in self._on:
            lever.after_backward()

    def may_step(self, optimizer: Any) -> bool:
        return all(lever.may_step(optimizer) for lever in self._on if lever.decides_steps)

    def may_clear(self, owner: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        return all(lever.may_clear(owner, args, kwargs) for lever in self._on)

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
        evidence = prove_launched(cold, backend, self._device, replicas)
        for lever in self._all:
            evidence.add(lever.prove())
        evidence.not_consumed.update(self._unknown)
        return evidence
