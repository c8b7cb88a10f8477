"""What a rank can show of an arm, merged over all ranks into the result that goes to the agent, and of equal states."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..calibrating.calibration_results import merge_calibrations
from ..facts import count_gradient_bytes
from ..levers.lever import Evidence
from ..link.measured import BlockResult
from ..observe.memory import read_peak_bytes
from ..observe.recorder import INTERRUPTED, NEW_EPOCH
from .account import account_for
from .agreement import Bits, find_apart
from .close_look import add_looks
from .parts import RankParts
from .rank_arm import RankArm, RankRace
from .weighing import merge_work


def merge_arm(ranks: Sequence[RankArm], script_ended: bool) -> BlockResult:
    """`ranks` in order. A step that was interrupted on any of them is left out."""
    first = ranks[0]
    # Of an arm that was given up single steps are told: it had no time for its whole pattern.
    period = 1 if first.given_up else first.period
    length = min(len(rank.step_time_s) for rank in ranks) // period * period
    kept = choose_steps(list(map(max, zip(*(rank.flags[:length] for rank in ranks)))), period)
    step_time_s, wall_s = merge_times([[rank.step_time_s[index] for index in kept] for rank in ranks])
    samples = [sum(rank.samples[index] for rank in ranks) for index in kept]
    losses, bad = merge_losses([rank.losses[:length] for rank in ranks])
    checks, bad_checks = merge_checks([rank.loss_checks for rank in ranks])
    nonfinite = sum(bad[index] for index in kept) + bad_checks
    return BlockResult(
        steps=len(kept),
        excluded_steps=length - len(kept),
        period=period,
        step_time_s=tuple(step_time_s),
        segments=count_segments([first.cycles[index] for index in kept], first.cycles),
        samples_per_step=statistics.fmean(samples) if samples else 0.0,
        samples=sum(samples),
        step_samples=tuple(samples) if len(set(samples)) > 1 else (),
        wall_s=wall_s,
        warmup_steps=first.warmup_steps,
        **account_for(ranks, length),
        losses=tuple(loss for index in kept if (loss := losses[index]) is not None),
        loss_checks=checks,
        diverged=nonfinite > 0,
        nonfinite_losses=nonfinite,
        peak_memory_bytes=max(rank.peak_memory_bytes for rank in ranks),
        bucket_bytes=tuple(first.bucket_bytes),
        **vars(merge_evidence([rank.evidence for rank in ranks])),
        script_ended=script_ended,
        switch_s=max(rank.switch_s for rank in ranks),
        given_up=first.given_up,
        same_as=first.same_as,
        relaunch_needed=first.relaunch_needed,
        bit_steps=first.bit_steps,
        bits_differ=first.bits_differ,
        calibration=merge_calibrations([rank.calibration for rank in ranks]),
    )


def merge_times(ranks: Sequence[Sequence[float]]) -> "tuple[List[float], float]":
    """The time of each step, and what all of them took by the clock of the rank for which they took longest.

    Ranks that wait for each other pass a boundary a little sooner or later: the slowest rank of every step would count
    each such delay, and never the step that it shortened. Their means do not, and are stretched to the clock's time.
    """
    means = [statistics.fmean(step) for step in zip(*ranks)]
    wall_s, told_s = max(map(math.fsum, ranks)), math.fsum(means)
    return [time_s * wall_s / told_s for time_s in means] if told_s > 0.0 else means, wall_s


def count_segments(kept: Sequence[int], cycles: Sequence[int]) -> Tuple[int, ...]:
    """Steps that count in each cycle, 0 where none does: the n-th entries of a race's arms belong together."""
    return tuple(kept.count(cycle) for cycle in range(max(cycles, default=-1) + 1))


def merge_evidence(ranks: Sequence[Evidence]) -> Evidence:
    """What one rank did not consume was not in force."""
    not_consumed = {knob: why for rank in ranks for knob, why in rank.not_consumed.items()}
    consumed, no_effect = (
        {knob: why for knob, why in told.items() if knob not in not_consumed}
        for told in (ranks[0].consumed, ranks[0].no_effect)
    )
    return Evidence(consumed, not_consumed, no_effect)


def choose_steps(flags: Sequence[int], period: int) -> List[int]:
    """Indices of the steps that count, by whole periods.

    Where more than half would be lost the interruption belongs to the step (a save in every step, an epoch of five),
    so the milder kind is kept first.
    """
    everything = list(range(len(flags)))
    for worst_kept in (NEW_EPOCH - 1, INTERRUPTED - 1):
        kept = [
            index
            for start in range(0, len(flags), period)
            if max(flags[start : start + period]) <= worst_kept
            for index in range(start, start + period)
        ]
        if 2 * len(kept) >= len(flags):
            return kept
    return everything


def merge_losses(series: Sequence[Sequence[Any]]) -> "tuple[List[Optional[float]], List[bool]]":
    """For every step the mean over ranks, and whether any rank's was not finite."""
    bad = ["nan" in losses for losses in zip(*series)]
    merged: List[Optional[float]] = []
    for losses in zip(*series):
        if any(loss is None or loss == "nan" for loss in losses):
            merged.append(None)
        else:
            merged.append(statistics.fmean(losses))
    return merged, bad


def merge_checks(ranks: Sequence[Sequence[Sequence[Any]]]) -> Tuple[Tuple[Tuple[float, ...], ...], int]:
    """The means of every loss check, none where a loss is missing, because batch is held against batch; and how many
    were not finite."""
    found = [merge_losses(series) for series in zip(*ranks)]
    checks = tuple(keep_whole(losses) for losses, _ in found)
    return (checks if all(checks) else ()), sum(sum(bad) for _, bad in found)


def keep_whole(losses: Sequence[Optional[float]]) -> Tuple[float, ...]:
    """None of them where one is missing."""
    known = tuple(loss for loss in losses if loss is not None)
    return known if len(known) == len(losses) else ()


def read_peak(parts: RankParts) -> int:
    """Bytes since the peak was set back, without the buckets of the reducers of strategies that are not in force."""
    reduction = parts.levers.reduction
    spare = sum(reduction.count_spares(ddp) * count_gradient_bytes(ddp) for ddp in parts.list_replicas())
    return max(0, read_peak_bytes(parts.device) - spare)


DRIFTED = (
    "The ranks held the same parameters before this race and different ones after it: a switch has broken their "
    "agreement. Nothing that it measured counts, nor what is measured in this launch from here on."
)


def merge_race(
    ranks: Sequence[RankRace],
    blocks: Sequence[str],
    bits_before: Sequence[Bits],
    script_ended: bool,
    drifted: str = "",
) -> Tuple[Dict[str, BlockResult], str]:
    """`ranks` in order: the results by their blocks, and a sentence where the ranks drifted apart.

    `bits_before` are the ranks' checksums of the parameters when the race began; `drifted` is the sentence of an
    earlier race of this launch.
    """
    # A script that ended inside left its ranks as it pleased: between two averagings, or with rank 0's best weights.
    if not script_ended:
        apart = find_apart([rank.bits for rank in ranks]).keys()
        drifted = drifted or (DRIFTED if apart - find_apart(bits_before).keys() else "")
    at_start, _ = merge_losses([rank.loss_at_start for rank in ranks])
    common: Dict[str, Any] = {"drifted": drifted, "loss_at_start": keep_whole(at_start)}
    looks = [rank.look for rank in ranks]
    merged = [add_looks(merge_arm(arms, script_ended), looks) for arms in zip(*(rank.arms for rank in ranks))]
    if len(blocks) == 1:
        # A race of one arm has no turns: the block was measured in one go.
        common["segments"] = ()
        common["work"] = merge_work([rank.arms[0].work for rank in ranks], [rank.bits for rank in ranks])
    return {block: replace(result, **common) for block, result in zip(blocks, merged)}, drifted
