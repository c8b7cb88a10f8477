"""What DDP's log and the hook's counts prove of each knob of the reducer, and the pause in which it reduces nothing.

Nothing is proved of a reducer in whose buckets some parameter is missing that the script's own one reduces.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

from ...observe.reduced import explain_delay, explain_own_ending, find_reduced
from ...private_torch import GET_LOG
from ..buckets import bucket_plan
from ..buckets.bucket_plan import describe_buckets, holds_list, read_buckets
from ..buckets.layer_buckets import find_most_layers, limit_layers
from ..lever import Evidence, Training
from . import reduction_plan
from .low_rank_reduction import LowRankReduction
from .reduction_plan import ReductionPlan
from .replica import Replica


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


def explain_no_pause(training: Training) -> str:
    """Why the reduction of a step cannot be left out in this script; "" when it can."""
    for ddp in training.replicas:
        if delay := explain_delay(ddp):
            return f"{delay}: DistributedDataParallel reduces those in every backward, in no_sync() too."
        if ending := explain_own_ending(ddp):
            return f"{ending}, which fails after one that reduced nothing."
    return ""


def explain_missing_parameters(ddp: Any, buckets: List[int]) -> str:
    """What of the parameters that the script's own reducer has these buckets lack; "" where all are there."""
    reduced = find_reduced(ddp)
    own = reduced.size_bytes if reduced is not None else 0
    if sum(buckets) == own:
        return ""
    return (
        f"Its buckets hold {sum(buckets)} bytes of gradients, and the script's own reducer {own}: ranks would train "
        "apart."
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


def prove_buckets(ddp: Any, replica: Replica, values: Mapping[str, Any], evidence: Evidence) -> None:
    """Adds what DDP's own log proves of the knobs of buckets."""
    chosen = [knob for knob in bucket_plan.KNOBS if knob in values]
    if not chosen:
        return
    buckets, final = read_buckets(ddp)
    if missing := explain_missing_parameters(ddp, buckets):
        evidence.not_consumed.update(dict.fromkeys(chosen, missing))
        return
    cap_in_log = int(GET_LOG.of(ddp)().get("bucket_cap_bytes", -1))
    if not final or cap_in_log != replica.plan.cap_bytes:
        sentence = (
            f"In force were {describe_buckets(buckets)} under a cap of {cap_in_log} bytes: DDP makes those for "
            f"the cap of {replica.plan.cap_bytes} that was asked for in the second step behind a switch, which did "
            "not come."
        )
        evidence.not_consumed.update(dict.fromkeys(chosen, sentence))
        return
    sentence = f"DDP's log: cap {replica.plan.cap_bytes} bytes, {describe_buckets(buckets)}."
    for knob in chosen:
        evidence.consumed[knob] = sentence
        if knob == bucket_plan.LAYERS:
            _prove_layers(ddp, replica, buckets, evidence)
        if knob == bucket_plan.LISTED and not holds_list(buckets, replica.plan.listed_bytes):
            evidence.not_consumed[knob] = (
                f"DDP's log shows {describe_buckets(buckets)}, which do not hold the sizes asked for in turn."
            )
        if knob == bucket_plan.BATCHED:
            evidence.consumed[knob] += f" Its reducer was built with {knob}={replica.plan.copies_batched}."
            continue
        if buckets == replica.baseline_buckets and replica.reduction == reduction_plan.BASELINE:
            evidence.no_effect[knob] = f"The same {describe_buckets(buckets)} as the baseline's."


def _prove_layers(ddp: Any, replica: Replica, buckets: List[int], evidence: Evidence) -> None:
    found, wanted = find_most_layers(ddp), replica.plan.most_layers
    if found is None:
        planned = limit_layers(ddp, replica.plan, replica.order_under(replica.plan)).listed_bytes
        if sorted(planned) == sorted(buckets):
            found = wanted
    if found is None or found > wanted:
        evidence.not_consumed[bucket_plan.LAYERS] = (
            f"DDP's log shows {describe_buckets(buckets)}, with up to {found or 'an unknown number of'} layers in "
            f"one, where {wanted} were wanted: gradients became ready in another order than before."
        )
        return
    evidence.consumed[bucket_plan.LAYERS] += f" At most {found} layers in one."


def prove_reduction(ddp: Any, replica: Replica, values: Mapping[str, Any], evidence: Evidence) -> None:
    """Adds what the hook's counts and its first sums prove of the knobs of reduction."""
    chosen = [knob for knob in reduction_plan.KNOBS if knob in values]
    if not replica.reduction.needs_hook:
        for knob in chosen:
            evidence.consumed[knob] = "The value equals the baseline's: DDP's own allreduce is in force."
        return
    if replica.state is None:
        return
    checked, wrong = replica.state.check.judge()
    wrong = wrong or explain_missing_parameters(ddp, read_buckets(ddp)[0])
    if wrong:
        evidence.not_consumed.update(dict.fromkeys(chosen, wrong))
        return
    for knob in chosen:
        if isinstance(replica.state, LowRankReduction):
            proved, sentence = judge_compression(replica.state, replica.reduction.rank)
        else:
            proved, sentence = judge(knob, replica.reduction, replica.state.counts)
        if proved and checked:
            sentence += f" Its first {checked} sums are those of a plain allreduce."
        (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence
