"""What the hook's own counts prove of each knob that it serves, and the pause in which DDP reduces nothing."""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

from ... import private_torch
from ..lever import Training
from . import reduction_plan
from .low_rank_reduction import LowRankReduction
from .reduction_plan import ReductionPlan


def judge_compression(state: LowRankReduction, rank: int) -> Tuple[bool, str]:
    """Whether gradients were compressed in the timed steps, with the sentence that says so."""
    whole, sent = state.count_numbers()
    if not whole:
        return False, "The hook compressed no bucket in the timed steps."
    if sent >= whole:
        return False, f"No gradient is large enough to be worth compressing to rank {rank}."
    return True, f"PowerSGD of rank {rank}, a translation of DGC: {sent} of {whole} numbers were sent."


def judge(knob: str, plan: ReductionPlan, counts: Mapping[str, List[int]]) -> Tuple[bool, str]:
    """Whether the hook's counts of the timed steps show that this knob was in force, with the sentence that says so."""
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
        over = ", gloo between them" if plan.gloo_between else ""
        return (
            two_level > 0 and (knob != reduction_plan.BETWEEN or plan.gloo_between),
            f"{two_level} of {total} buckets went through two levels of {plan.inner_size} ranks inside{over}.",
        )
    if plan.wire_format is None:
        return True, "The value equals the baseline's: gradients travel as they are."
    sentence = f"{counts['converted'][0]} of {total} buckets travelled as {plan.wire_format}."
    return counts["converted"][0] > 0, sentence


def explain_delay(ddp: Any) -> str:
    """That a hook beside its reducer reduces gradients of this model: the beginning of a sentence or ""."""
    if private_torch.DELAYS_ALL.find(ddp) or private_torch.DELAYED.find(ddp):
        return "The script delays all-reduces of some parameters (delay_all_reduce_named_params)"
    return ""


def explain_no_pause(training: Training) -> str:
    """Why the reduction of a step cannot be left out in this script; "" when it can."""
    delay = next(filter(None, map(explain_delay, training.replicas)), "")
    return (
        f"{delay}: DistributedDataParallel reduces those in every backward, in no_sync() too."
        if delay
        else ""
    )


class ReductionPause:
    """DDP decides at the forward whether the backward after it reduces; between forwards its flag is the script's."""

    def __init__(self) -> None:
        self._paused: List[Any] = []
        self.count = 0
        """Reductions skipped."""

    def begin(self, ddp: Any) -> None:
        """Skips the reduction after this forward, unless the script itself skips it already (no_sync)."""
        if ddp.require_backward_grad_sync:
            ddp.require_backward_grad_sync = False
            self._paused.append(ddp)
            self.count += 1

    def end(self) -> None:
        for ddp in self._paused:
            ddp.require_backward_grad_sync = True
        self._paused.clear()
