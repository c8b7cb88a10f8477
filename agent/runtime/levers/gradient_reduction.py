"""The lever of all that lives in DDP's reducer: bucket sizes and the communication hook, switched in one rebuild."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from . import bucket_plan, reduction_plan
from .bucket_plan import BucketPlan, describe_buckets, observe_plan, read_buckets, resolve_plan
from .communicators import Communicators
from .lever import Evidence, Lever, Training
from .reducer import explain_no_rebuild, has_own_hook, rebuild_reducer
from .reduction_hook import BucketReduction, reduce_bucket
from .reduction_plan import ReductionPlan, resolve_reduction


class _Replica:
    """What the lever knows about one DDP model."""

    def __init__(self, ddp: Any) -> None:
        self.baseline = observe_plan(ddp)
        self.plan = self.baseline
        self.reduction = reduction_plan.BASELINE
        self.state: Optional[BucketReduction] = None
        self.has_own_hook = has_own_hook(ddp)
        self.baseline_buckets: List[int] = []


class GradientReduction(Lever):
    """Switching rebuilds the reducer only where its plan differs from the one in force."""

    knobs = bucket_plan.KNOBS + reduction_plan.KNOBS
    changes_training = ("fp16_allreduce", "fp16_allreduce_dtype")

    def __init__(self, rank: int, world_size: int, local_world_size: int, device: torch.device) -> None:
        self._world_size = world_size
        self._local_world_size = local_world_size
        self._device = device
        self._communicators = Communicators(rank, world_size)
        self._replicas: "weakref.WeakKeyDictionary[Any, _Replica]" = weakref.WeakKeyDictionary()
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._refusals: Dict[str, str] = {}
        self.rebuilt = False
        """Whether the last switch replaced a reducer."""

    def list_refusals(self, training: Training) -> Dict[str, str]:
        refusals: Dict[str, str] = {}
        for ddp in training.replicas:
            self._know(ddp)
            refusals.update(self._refuse_for(ddp))
        return refusals

    def _know(self, ddp: Any) -> _Replica:
        """Records a model's own plan; call before anything was switched."""
        if ddp not in self._replicas:
            self._replicas[ddp] = _Replica(ddp)
        replica = self._replicas[ddp]
        if not replica.baseline_buckets and replica.plan == replica.baseline and replica.state is None:
            buckets, final = read_buckets(ddp)
            replica.baseline_buckets = buckets if final else []
        return replica

    def _refuse_for(self, ddp: Any) -> Dict[str, str]:
        """Collective over the model's group: tries which 16-bit formats its backend reduces."""
        refusals: Dict[str, str] = {}
        reason = explain_no_rebuild(ddp)
        if reason is not None:
            refusals.update(dict.fromkeys(self.knobs, reason))
        if self._replicas[ddp].has_own_hook:
            sentence = (
                "The script registered a communication hook of its own, which these knobs would replace."
            )
            refusals.update(dict.fromkeys(reduction_plan.KNOBS, sentence))
        if self._replicas[ddp].baseline.listed_bytes:
            sentence = (
                "The script sets its buckets one by one (bucket_cap_mb_list); they are left as they are."
            )
            refusals.update(dict.fromkeys(bucket_plan.KNOBS, sentence))
        if dist.get_world_size(ddp.process_group) != self._world_size:
            sentence = "The model reduces over a part of the ranks only; further communicators cannot be made for it."
            refusals.update(dict.fromkeys(reduction_plan.KNOBS[:4], sentence))
        if not any(1 < size < self._world_size and self._world_size % size == 0 for size in range(2, 1025)):
            sentence = f"{self._world_size} ranks cannot be split into two levels of at least 2."
            refusals.update(dict.fromkeys(reduction_plan.KNOBS[2:4], sentence))
        unsupported = _find_unsupported_formats(ddp.process_group, self._device)
        if len(unsupported) == len(reduction_plan.FORMATS):
            refusals.setdefault(
                "fp16_allreduce", f"The backend reduces no 16-bit format: {unsupported['fp16']}"
            )
            refusals.setdefault("fp16_allreduce_dtype", refusals["fp16_allreduce"])
        elif unsupported:
            self._refusals = {
                name: f"The backend cannot reduce {name}: {why}" for name, why in unsupported.items()
            }
        return refusals

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values = values
        self.rebuilt = False
        reduction, self._rejected = resolve_reduction(values, self._world_size, self._local_world_size)
        if reduction.wire_format in self._refusals:
            self._rejected["fp16_allreduce_dtype"] = self._refusals[reduction.wire_format]
            self._rejected["fp16_allreduce"] = self._refusals[reduction.wire_format]
            reduction = reduction_plan.BASELINE
        for ddp in training.replicas:
            replica = self._know(ddp)
            plan, rejected = resolve_plan(replica.baseline, values)
            self._rejected.update(rejected)
            if (plan, reduction) != (replica.plan, replica.reduction):
                self._rebuild(ddp, replica, plan, reduction)

    def _rebuild(self, ddp: Any, replica: _Replica, plan: BucketPlan, reduction: ReductionPlan) -> None:
        if replica.state is not None:
            replica.state.close()
            replica.state = None
        if reduction == reduction_plan.BASELINE:
            rebuild_reducer(ddp, plan)
        else:
            state = BucketReduction(reduction, ddp, self._communicators, self._device)
            rebuild_reducer(ddp, plan, state, reduce_bucket)
            replica.state = state
        replica.plan, replica.reduction = plan, reduction
        self.rebuilt = True

    def begin_timing(self) -> None:
        for replica in self._replicas.values():
            if replica.state is not None:
                replica.state.reset_counts()

    def list_bucket_bytes(self, replicas: List[Any]) -> List[int]:
        return [size for ddp in replicas for size in read_buckets(ddp)[0]]

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for ddp, replica in list(self._replicas.items()):
            self._prove_buckets(ddp, replica, evidence)
            self._prove_reduction(replica, evidence)
        evidence.consumed = {k: v for k, v in evidence.consumed.items() if k not in evidence.not_consumed}
        return evidence

    def _prove_buckets(self, ddp: Any, replica: _Replica, evidence: Evidence) -> None:
        chosen = [knob for knob in bucket_plan.KNOBS if knob in self._values]
        if not chosen:
            return
        buckets, final = read_buckets(ddp)
        cap_in_log = int(ddp._get_ddp_logging_data().get("bucket_cap_bytes", -1))
        if not final or cap_in_log != replica.plan.cap_bytes:
            sentence = f"DDP's log shows a cap of {cap_in_log} bytes and {len(buckets)} buckets, not yet the new plan."
            evidence.not_consumed.update(dict.fromkeys(chosen, sentence))
            return
        sentence = f"DDP's log: cap {replica.plan.cap_bytes} bytes, {describe_buckets(buckets)}."
        for knob in chosen:
            evidence.consumed[knob] = sentence
            if buckets == replica.baseline_buckets and replica.reduction == reduction_plan.BASELINE:
                evidence.no_effect[knob] = f"The same {describe_buckets(buckets)} as the baseline's."

    def _prove_reduction(self, replica: _Replica, evidence: Evidence) -> None:
        chosen = [knob for knob in reduction_plan.KNOBS if knob in self._values]
        if replica.reduction == reduction_plan.BASELINE:
            for knob in chosen:
                evidence.consumed[knob] = "The value equals the baseline's: DDP's own allreduce is in force."
            return
        if replica.state is None:
            return
        for knob in chosen:
            proved, sentence = _judge(knob, replica.reduction, replica.state.counts)
            (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence


def _judge(knob: str, plan: ReductionPlan, counts: Mapping[str, List[int]]) -> Tuple[bool, str]:
    buckets, sizes = counts["buckets"], counts["bytes"]
    total = sum(buckets)
    if total == 0:
        return False, "The hook reduced no bucket in the timed steps."
    if knob == "nccl_comm_num":
        used = sum(1 for count in buckets if count)
        sentence = f"Buckets per communicator {buckets}, bytes {sizes}."
        if used < plan.communicators:
            return (
                False,
                f"{sentence} Only {used} of {plan.communicators} carried gradients: too few buckets per step.",
            )
        return True, sentence
    if knob == "sync_nccl_allreduce":
        order = "one after another in one lane" if plan.serial else "each as soon as it was ready"
        return (not plan.serial or counts["lane"][0] == total), f"{total} buckets were reduced {order}."
    if knob.startswith(("use_hierarchical", "hierarchical")):
        if plan.inner_size == 0:
            return True, "The value equals the baseline's: one level."
        two_level = counts["two_level"][0]
        return (
            two_level > 0,
            f"{two_level} of {total} buckets went through two levels of {plan.inner_size} ranks inside.",
        )
    if plan.wire_format is None:
        return True, "The value equals the baseline's: gradients travel as they are."
    sentence = f"{counts['converted'][0]} of {total} buckets travelled as {plan.wire_format}."
    return counts["converted"][0] > 0, sentence


def _find_unsupported_formats(group: Any, device: torch.device) -> Dict[str, str]:
    unsupported: Dict[str, str] = {}
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        try:
            dist.all_reduce(torch.ones(2, dtype=dtype, device=device), group=group)
        except RuntimeError as error:
            unsupported[name] = str(error).splitlines()[0]
    return unsupported
