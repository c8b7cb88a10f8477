"""The lever of all that lives in DDP's reducer: bucket sizes and the communication hook, switched in one rebuild."""

from __future__ import annotations

import weakref
from dataclasses import astuple, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import torch

from ..buckets import bucket_plan
from ..buckets.bucket_plan import (
    BucketPlan,
    read_buckets,
    resolve_plan,
)
from ..buckets.layer_buckets import (
    count_layers,
    limit_layers,
    read_order,
)
from ..lever import Evidence, Lever, RelaunchNeeded, Training
from ..script_compilation import is_cut_at_buckets
from . import reduction_plan
from .communicators import Communicators, NoRoom
from .low_rank_reduction import EXACT_STEPS, LowRankReduction
from .nccl_options import Configuration
from .reducer import (
    SAMPLED_ITERATIONS,
    LiveReducer,
    explain_no_handover,
    explain_no_live_reducers,
    explain_no_rebuild,
    hand_over,
    rebuild_reducer,
)
from .reduction_hook import BucketReduction, find_unsupported_formats, reduce_bucket
from .reduction_plan import ReductionPlan, plan_strategy, resolve_reduction
from .reduction_proof import prove_buckets, prove_reduction
from .reduction_refusals import CUT, refuse_knobs, refuse_together
from .replica import Replica

CHECKED_PASSES = 3
"""Fewer than any warm-up has: no timed step pays for them."""
HOOK_CAME = (
    "The script has registered a communication hook of its own since: gradients go its way from here on."
)


class GradientReduction(Lever):
    """Switching builds a reducer only where its plan is neither in force nor kept beside the one in force."""

    knobs = bucket_plan.KNOBS + reduction_plan.KNOBS
    changes_training = ("fp16_allreduce", "fp16_allreduce_dtype", *reduction_plan.COMPRESSION)

    def __init__(self, rank: int, world_size: int, local_world_size: int, device: torch.device) -> None:
        self._world_size = world_size
        self._local_world_size = local_world_size
        self._device = device
        self.communicators = Communicators(rank, world_size, device)
        self._replicas: "weakref.WeakKeyDictionary[Any, Replica]" = weakref.WeakKeyDictionary()
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._refusals: Dict[str, str] = {}
        self._configuration: Configuration = ()
        self._searches_unused = True
        self.is_compared = False
        """Whether `describe_in_force` is asked for right after the warm-up."""
        self.checked_passes = CHECKED_PASSES
        """Backward passes of a new hook whose sums are held against plain ones."""
        self.keeps_live = False
        """Whether reducers that are switched away from live on, to be switched back to."""

    def list_refusals(self, training: Training) -> Dict[str, str]:
        refusals: Dict[str, str] = {}
        for ddp in training.replicas:
            replica = self._know(ddp)
            replica.is_cut_at_buckets = is_cut_at_buckets(ddp)
            unsupported = find_unsupported_formats(ddp.process_group, self._device)
            if 0 < len(unsupported) < len(reduction_plan.FORMATS):
                self._refusals = {
                    name: f"The backend cannot reduce {name}: {why}" for name, why in unsupported.items()
                }
            found = refuse_knobs(
                ddp,
                replica.baseline,
                replica.has_own_hook,
                replica.is_cut_at_buckets,
                unsupported,
                self._device,
            )
            reason = explain_no_handover(ddp, training.awaited.get(id(ddp), []))
            refusals.update({**found, **dict.fromkeys(self.knobs if reason else (), str(reason))})
        refusals.update(refuse_together(training.replicas, self._device))
        if training.precision.scalers:
            sentence = (
                "The script scales its loss with a GradScaler: gradients overflow now and then, and compression would "
                "feed that error back for ever."
            )
            refusals.update(dict.fromkeys(reduction_plan.COMPRESSION, sentence))
        return refusals

    def _know(self, ddp: Any) -> Replica:
        """Records a model's own plan; call before anything was switched."""
        if ddp not in self._replicas:
            self._replicas[ddp] = Replica(ddp)
        replica = self._replicas[ddp]
        if not replica.baseline_buckets and replica.plan == replica.baseline and replica.state is None:
            buckets, final = read_buckets(ddp)
            replica.baseline_buckets = buckets if final else []
            replica.order = read_order(ddp)
        return replica

    def observe(self, training: Training) -> Dict[str, Any]:
        """DDP limits no bucket to a number of layers: all of the model's may share one."""
        observed: Dict[str, Any] = {}
        models = [ddp for ddp in training.replicas if explain_no_rebuild(ddp) is None]
        if models:
            observed[bucket_plan.LAYERS] = float(max(map(count_layers, models)))
            observed[bucket_plan.BATCHED] = all(self._know(ddp).baseline.copies_batched for ddp in models)
        return observed

    def explain_no_exchange(self, ddp: Any) -> Optional[str]:
        """Why this model's gradients cannot be sent over other communicators, or None. Call between steps."""
        if self._know(ddp).has_own_hook:
            return (
                "The script registered a communication hook of its own, with communicators of its own choice."
            )
        return explain_no_rebuild(ddp)

    def configure(self, configuration: Configuration) -> None:
        """What the next switch makes NCCL's communicators with; empty leaves gradients with the job's own."""
        self._configuration = configuration

    def search_unused(self, searches: bool) -> None:
        """Whether reducers that the next switch puts in force search for unused parameters, where the script's do."""
        self._searches_unused = searches

    def list_searching(self) -> List[Any]:
        """The reducers that live beside those in force and search for unused parameters."""
        spares = (spare for replica in self._replicas.values() for spare in replica.spare.items())
        return [live.reducer for (plan, _), (live, _) in spares if plan.searches_unused]

    def read_made(self) -> List[Dict[str, int]]:
        """What NCCL's communicators of the strategy in force were made with, beside the job's own."""
        return self.communicators.read_made(
            [(replica.reduction, ddp.process_group) for ddp, replica in self._replicas.items()]
        )

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values = values
        rebuilt = False
        reduction, self._rejected = resolve_reduction(values, self._world_size, self._local_world_size)
        if reduction.wire_format in self._refusals:
            self._rejected["fp16_allreduce_dtype"] = self._refusals[reduction.wire_format]
            self._rejected["fp16_allreduce"] = self._refusals[reduction.wire_format]
            reduction = reduction_plan.BASELINE
        reduction = self._make_room(replace(reduction, configuration=self._configuration), training.replicas)
        compressing = 1 + EXACT_STEPS if reduction.rank else 0
        for ddp in training.replicas:
            replica = self._know(ddp)
            if replica.is_left_alone:
                self._rejected.update(dict.fromkeys(values, HOOK_CAME))
                continue
            plan, rejected = resolve_plan(replica.baseline, values)
            self._rejected.update(rejected)
            if not self._searches_unused:
                plan = replace(plan, searches_unused=False)
            if replica.is_cut_at_buckets and plan != replica.baseline:
                raise RelaunchNeeded(CUT)
            if replica.is_stale or (plan, reduction) != (replica.plan, replica.reduction):
                outputs = training.awaited.get(id(ddp), [])
                reason = explain_no_handover(ddp, outputs, plan.searches_unused)
                if reason is not None:
                    raise RelaunchNeeded(reason)
                is_entered = ddp is training.entered
                rebuilt = self._exchange(ddp, replica, plan, reduction, is_entered) or rebuilt
                if outputs:
                    hand_over(ddp, outputs)
        # A new reducer puts its buckets into the order of the gradients with its second step; the third one tells of
        # them, and on CUDA the one that DDP's log samples next.
        sampled = SAMPLED_ITERATIONS if self._device.type == "cuda" else 0
        told = 3 if self.is_compared else 0
        self.least_warm_up = max(compressing, sampled, told) if rebuilt else compressing
        self.lead_in = max(compressing, sampled, 2) if rebuilt and not self.keeps_live else 1

    def make_way(self, ddp: Any) -> bool:
        """The script registers a hook of its own now: what stands in its place goes, for good. Whether anything did."""
        replica = self._know(ddp)
        replica.is_left_alone = True
        replica.spare.clear()
        if (replica.plan, replica.reduction) == (replica.baseline, reduction_plan.BASELINE):
            return False
        self.keeps_live = False
        self._exchange(ddp, replica, replica.baseline, reduction_plan.BASELINE)
        return True

    def _make_room(self, reduction: ReductionPlan, replicas: List[Any]) -> ReductionPlan:
        """The plan with its communicators made, or the baseline's where no card has room for them."""
        try:
            for group in {id(ddp.process_group): ddp.process_group for ddp in replicas}.values():
                self.communicators.prepare(reduction, group)
        except NoRoom as full:
            if reduction.configuration:
                # A launch sets it for the communicators that the job has anyway.
                raise RelaunchNeeded(str(full)) from full
            self._rejected.update({knob: str(full) for knob in reduction_plan.KNOBS if knob in self._values})
            return reduction_plan.BASELINE
        return reduction

    def _exchange(
        self, ddp: Any, replica: Replica, plan: BucketPlan, reduction: ReductionPlan, is_entered: bool = False
    ) -> bool:
        """Puts the plan in force; whether that took a new reducer."""
        keeps_old = self.keeps_live and not replica.is_stale
        found = replica.spare.pop((plan, reduction), None)
        before = (LiveReducer(ddp), replica.state) if keeps_old else None
        if found is not None:
            reducer, replica.state = found
            reducer.take_over(ddp)
            if isinstance(replica.state, LowRankReduction):
                replica.state.forget_errors()
        else:
            replica.state = self._build(ddp, replica, plan, reduction, is_entered)
        if before is not None:
            replica.spare[replica.plan, replica.reduction] = before
        replica.plan, replica.reduction, replica.is_stale = plan, reduction, False
        return found is None

    def _build(
        self, ddp: Any, replica: Replica, plan: BucketPlan, reduction: ReductionPlan, is_entered: bool
    ) -> Union[BucketReduction, LowRankReduction, None]:
        buckets = limit_layers(ddp, plan, replica.order_under(plan))
        if not reduction.needs_hook:
            count, kind = reduction.own_groups, reduction.configuration
            groups = self.communicators.provide_flat(count, kind, ddp.process_group)
            rebuild_reducer(ddp, buckets, group=next(iter(groups), None), is_entered=is_entered)
            return None
        self.communicators.note_hook()
        state = (
            LowRankReduction(reduction, ddp, self.communicators, self._device)
            if reduction.rank
            else BucketReduction(reduction, ddp, self.communicators, self._device, self.checked_passes)
        )
        rebuild_reducer(ddp, buckets, state, reduce_bucket, is_entered=is_entered)
        return state

    def explain_no_live(self, replicas: List[Any]) -> Optional[str]:
        """Why reducers cannot live side by side in this job, or None."""
        reasons = (explain_no_rebuild(ddp) or explain_no_live_reducers(ddp) for ddp in replicas)
        return next((reason for reason in reasons if reason), None)

    def begin_race(self) -> None:
        """Compression is begun anew in every race, so that no error of the last one is fed back."""
        for replica in self._replicas.values():
            replica.is_stale = bool(replica.reduction.rank)

    def keep_communicators(self, strategies: Sequence[Mapping[str, Any]]) -> None:
        """Collective. Gives back those that neither these strategies need nor what is in force."""
        plans = [plan_strategy(values, self._world_size, self._local_world_size) for values in strategies]
        self.communicators.keep_only([*plans, *(replica.reduction for replica in self._replicas.values())])

    def forget_errors(self) -> None:
        """What compression left out so far belongs to no state of the training that follows."""
        for replica in self._replicas.values():
            if isinstance(replica.state, LowRankReduction):
                replica.state.forget_errors()

    def drop_spares(self) -> None:
        """Lets go of all reducers but those in force, with their buckets and hooks."""
        for replica in self._replicas.values():
            replica.spare.clear()

    def count_spares(self, ddp: Any) -> int:
        """Reducers of this model beside the one in force."""
        return len(self._replicas[ddp].spare) if ddp in self._replicas else 0

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        """The buckets that DDP came to, and how they are reduced; the sizes asked for do not matter."""
        found = []
        for ddp, replica in list(self._replicas.items()):
            buckets, final = read_buckets(ddp)
            flags = [replica.plan.copies_batched, replica.plan.searches_unused]
            plan = flags if final else astuple(replica.plan)
            found.append([buckets, plan, astuple(replica.reduction)])
        return found

    def begin_timing(self) -> None:
        for replica in self._replicas.values():
            if replica.state is not None:
                replica.state.reset_counts()

    def list_bucket_bytes(self, replicas: List[Any]) -> List[int]:
        return [size for ddp in replicas for size in read_buckets(ddp)[0]]

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for ddp, replica in list(self._replicas.items()):
            prove_buckets(ddp, replica, self._values, evidence)
            prove_reduction(ddp, replica, self._values, evidence)
        evidence.consumed = {k: v for k, v in evidence.consumed.items() if k not in evidence.not_consumed}
        return evidence
