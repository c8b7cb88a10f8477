"""All levers of one rank: switches a whole strategy at once and collects the evidence for each of its knobs."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ..loading.reading import Reading
from ..observe import deepspeed
from ..observe.clock import Clock
from ..observe.recomputation import Recomputation
from ..observe.sharded import find_kind
from .buckets import bucket_plan
from .computation.activation_checkpointing import ActivationCheckpointing
from .computation.compilation import Compilation
from .computation.convolutions import refuse_convolutions
from .computation.data_reading import DataReading
from .computation.garbage_collection import GarbageCollection
from .computation.memory_fraction import MemoryFraction
from .computation.mixed_precision import MixedPrecision
from .computation.numa_binding import NumaBinding
from .computation.optimizer_fusion import OptimizerFusion
from .computation.run_ahead import RunAhead
from .computation.sync_batch_norm import SyncBatchNormalization
from .computation.threads import Threads
from .events import StepEvents
from .launched import observe_launched, prove_launched, refuse_launched
from .lever import Evidence, Lever, RelaunchNeeded, Training
from .micro_batches.micro_batches import MicroBatches
from .micro_batches.split_forward import SplitForward
from .own_knobs import OwnKnobs
from .reduction.adaptive_local_sgd import AdaptiveLocalSgd
from .reduction.buffer_broadcast import BufferBroadcast
from .reduction.deferred_sync import DeferredSync
from .reduction.gradient_merge import GradientMerge
from .reduction.gradient_reduction import GradientReduction
from .reduction.local_sgd import LocalSgd
from .reduction.nccl_configuration import NcclConfiguration
from .reduction.step_gate import StepGate
from .reduction.unused_parameters import UnusedParameters
from .sharding.engine_reduction import EngineReduction
from .sharding.gradient_scatter import GradientScatter
from .sharding.prefetching import Prefetching
from .sharding.resharding import Resharding


class Levers:
    """A strategy is the baseline plus overrides; nothing of the one before stays in force."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_world_size: int,
        device: torch.device,
        clock: Clock,
        cold: Mapping[str, Any],
        reading: Reading,
        scratch: Optional[str] = None,
        own: Optional[Mapping[str, Mapping[str, Any]]] = None,
        splitting: Optional[SplitForward] = None,
        local_rank: int = 0,
        recomputation: Optional[Recomputation] = None,
    ) -> None:
        """`scratch` is a folder for what levers write, that goes with the session; None in a real training. `own` is
        about the script's own knobs."""
        self.reduction = GradientReduction(rank, world_size, local_world_size, device)
        self._compilation = Compilation(device, scratch)
        self._own_knobs = OwnKnobs(own or {})
        self._all: List[Lever] = [
            NcclConfiguration(self.reduction, device),
            UnusedParameters(self.reduction),
            self.reduction,
            BufferBroadcast(),
            # Before those that read gradients ahead of the optimizer.
            DeferredSync(),
            LocalSgd(clock),
            AdaptiveLocalSgd(clock),
            # The script's scaler is not asked about an overflow in a merged step: the parameters do not change in it.
            GradientMerge(),
            MixedPrecision(device),
            Threads(),
            NumaBinding(device, local_rank, local_world_size),
            MemoryFraction(device),
            DataReading(reading, device),
            MicroBatches(splitting or SplitForward()),
            ActivationCheckpointing(recomputation or Recomputation(), device),
            Resharding(),
            Prefetching(),
            GradientScatter(device),
            EngineReduction(device),
            # After the levers whose settings compiled code has built in: buckets and threads.
            SyncBatchNormalization(device),
            OptimizerFusion(),
            self._compilation,
            GarbageCollection(),
            RunAhead(device),
            self._own_knobs,
        ]
        self._on: List[Lever] = []
        self.events = StepEvents()
        self._gate = StepGate(self.may_step)
        self._may_hold = self._held = False
        self._owner = {knob: lever for lever in self._all for knob in lever.knobs}
        self._inexact = {knob for lever in self._all for knob in lever.changes_training}
        self._cold = cold
        self._device = device
        self._refusals: Dict[str, str] = {}
        self._unknown: Dict[str, str] = {}
        self._given: Tuple[str, ...] = ()
        self._baseline: Dict[str, Any] = {}
        self._in_force: Dict[Lever, Mapping[str, Any]] = {}
        """What each lever was switched to; one that is missing has to be switched whatever is asked of it."""
        self._taken: Dict[str, Any] = {}
        self._switched: List[Lever] = []
        self.have_switched = False
        """Whether anything was ever put in force."""

    @property
    def replaces_reduction(self) -> bool:
        """Whether DDP's own record of communication means nothing under the strategy in force."""
        return any(lever.replaces_reduction for lever in self._on)

    @property
    def averages_at_boundaries(self) -> bool:
        """Whether what happens in `end_step` is all the communication there is."""
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
    def batches_per_step(self) -> int:
        """The script's batches that one forward has: a step of the script's own has one."""
        return max((lever.batches_per_step for lever in self._on), default=1)

    @property
    def least_warm_up(self) -> int:
        """Steps that the last switch needs where it was the first one to its strategy in this race."""
        return max((lever.least_warm_up for lever in self._switched), default=0)

    @property
    def lead_in(self) -> int:
        """Untimed steps that the last switch needs."""
        return max((lever.lead_in for lever in self._switched), default=1)

    @property
    def least_segment(self) -> int:
        """Fewest steps of the strategy in force that show what it costs."""
        return max((lever.least_segment for lever in self._all), default=0)

    @property
    def starts_slowly(self) -> bool:
        """Whether the first steps after the last switch say nothing of its pace."""
        return any(lever.starts_slowly for lever in self._switched)

    @property
    def compiles(self) -> bool:
        """Whether the next steps may compile the model, which takes up to minutes."""
        return self._compilation.is_on

    def list_refusals(self, training: Training) -> Dict[str, str]:
        """Collective. Knobs that this job cannot use, each with its sentence."""
        self._leave_out_idle(training)
        self._refusals.update(refuse_launched(self._cold))
        self._refusals.update(refuse_convolutions(training, self._device))
        for lever in self._all:
            try:
                self._refusals.update(lever.list_refusals(training))
            except (AttributeError, ImportError, TypeError) as error:
                # On all ranks alike: they run one torch. A training whose torch is newer than a lever goes without it.
                reason = f"It does not work with torch {torch.__version__}: {type(error).__name__}: {error}."
                self._refusals.update(dict.fromkeys(lever.knobs, reason))
        return dict(self._refusals)

    def _leave_out_idle(self, training: Training) -> None:
        """Levers that this kind of model has no use for; a knob that another one serves stays."""
        idle, self._all = self._all, []
        kind = find_kind(training.sharded[0]) if training.sharded else ""
        for lever in idle:
            serves = lever.serves_plain if training.plain else lever.serves_replicas
            if kind:
                serves = lever.serves_engines if kind == deepspeed.NAME else lever.serves_sharded
            if serves:
                self._all.append(lever)
        served = {knob for lever in self._all for knob in lever.knobs}
        sentence = "The model is not sharded: every rank holds all parameters all the time."
        if kind == deepspeed.NAME:
            sentence = "It acts on DistributedDataParallel or fully_shard, not on DeepSpeed's engine."
        elif training.plain:
            sentence = "One rank trains the model, which nothing wraps: it acts on DistributedDataParallel."
        elif kind:
            sentence = f"It does not act on a model that is sharded by {kind}."
        unserved = {knob: sentence for lever in idle for knob in lever.knobs if knob not in served}
        self._refusals.update(unserved)

    def watch(self, training: Training) -> None:
        """At the first boundary."""
        for lever in self._all:
            lever.watch(training)

    def refuse(self, refusals: Mapping[str, str]) -> None:
        """What another rank cannot use, this one does not use either."""
        self._refusals.update(refusals)

    def observe(self, training: Training) -> Dict[str, Any]:
        """The baseline: every knob as the script itself has set it."""
        observed = observe_launched(self._cold)
        for lever in self._all:
            observed.update(lever.observe(training))
        self._baseline = dict(observed)
        return observed

    def refuse_inexact(self, reason: str) -> Dict[str, str]:
        """Of what changes the training, which a trial saves first."""
        return {knob: reason for knob in self._inexact if knob not in self._refusals}

    def needs_snapshot(self, overrides: Mapping[str, Any]) -> bool:
        return any(knob in self._inexact and knob not in self._refusals for knob in overrides)

    def begin_race(self, strategies: Sequence[Mapping[str, Any]], holds: bool = False) -> None:
        """From here on every one of them is switched to anew once; whether updates are going to be held back in it."""
        self.reduction.keep_communicators(strategies)
        self._may_hold = holds
        self._in_force.clear()
        for lever in self._all:
            lever.begin_race()

    def switch(self, overrides: Mapping[str, Any], training: Training) -> None:
        """From the strategy in force to baseline + `overrides`; only levers that are asked for something else move.

        May raise RelaunchNeeded; then the levers before it are switched, and the next switch puts all right.
        """
        self._unknown = {}
        self._held, self.have_switched = False, True
        # A setting of the launch that is asked for as it stands is still to be proved: no lever will.
        self._given = tuple(knob for knob in overrides if knob in self._owner)
        if any(knob in bucket_plan.KNOBS for knob in overrides):
            # The launched bucket size has been replaced on purpose: it is no longer to be proved.
            self._given += bucket_plan.KNOBS
        self._taken = {}
        for knob, value in overrides.items():
            if knob in self._refusals:
                self._unknown[knob] = self._refusals[knob]
            elif knob in self._owner:
                self._taken[knob] = value
            elif knob not in self._cold or self._cold[knob] != value:
                self._unknown[knob] = f"{knob} cannot be switched in a live process by this runtime."
        self._leave(training)
        self._switched = []
        for lever in self._all:
            values = {knob: self._taken[knob] for knob in lever.knobs if knob in self._taken}
            # Compiled code has other levers' values built in; a model may have come since the last switch.
            moves_with_others = lever is self.reduction or (lever is self._compilation and values)
            if self._in_force.get(lever) == values and not moves_with_others:
                continue
            self._in_force.pop(lever, None)
            try:
                lever.switch(values, training)
            except RelaunchNeeded as needed:
                needed.knobs = tuple(values)
                raise
            self._in_force[lever] = values
            self._switched.append(lever)
        self._on = [lever for lever in self._all if lever.is_on]
        self.events.listeners = [*self._on]
        # A step that takes its forward as a closure is under way when updates are held: the gate has to stand before.
        gated = self._may_hold or any(lever.decides_steps for lever in self._on)
        self._gate.guard(training.all_optimizers if gated else [])

    def _leave(self, training: Training) -> None:
        for lever in self._on:
            lever.end_segment(training)
            self._in_force.pop(lever, None)
        self._on, self.events.listeners = [], []

    def describe_in_force(self) -> str:
        """What is in force, whatever was asked for: equal texts mean the same strategy."""
        found = []
        for lever in self._all:
            own = {knob: self._baseline.get(knob) for knob in lever.knobs}
            own.update({knob: self._taken[knob] for knob in lever.knobs if knob in self._taken})
            found.append(lever.describe_in_force(own))
        return json.dumps(found, sort_keys=True, default=str)

    def may_step(self, optimizer: Any) -> bool:
        return not self._held and all(lever.may_step(optimizer) for lever in self._on if lever.decides_steps)

    def end_step(self, training: Training) -> None:
        for lever in self._on:
            lever.end_step(training)

    def end_segment(self, training: Training) -> None:
        """Leaves no rank with a state of its own; what is in force has to be switched to again."""
        self._leave(training)

    def hold(self, training: Training) -> None:
        """No optimizer steps until `let_go` or the next switch: the script goes on, and nothing is learned."""
        self._held = True
        self._gate.guard(training.all_optimizers)
        self.reduction.forget_errors()

    def let_go(self) -> None:
        """Optimizers step again."""
        self._held = False

    @property
    def work_in_steps(self) -> bool:
        """Whether any lever has something to do at step boundaries."""
        return bool(self._on)

    def list_faults(self) -> Dict[str, str]:
        """Of all levers."""
        return {knob: why for lever in self._all for knob, why in lever.list_faults().items()}

    def begin_timing(self) -> None:
        for lever in self._all:
            lever.begin_timing()

    def prove(self, backend: str, replicas: List[Any]) -> Evidence:
        cold = {knob: value for knob, value in self._cold.items() if knob not in self._given}
        theirs = {knob: cold.pop(knob) for knob in list(cold) if self._own_knobs.has(knob)}
        evidence = prove_launched(cold, backend, self._device, replicas)
        for knob, value in theirs.items():
            evidence.add(self._own_knobs.prove_launched(knob, value))
        for lever in self._all:
            evidence.add(lever.prove())
        evidence.not_consumed.update(self._unknown)
        return evidence
