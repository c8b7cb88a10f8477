"""What a rank can show of an arm, merged over all ranks into the result that goes to the agent, and of equal states."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..calibrating.calibration_results import merge_calibrations
from ..facts import count_gradient_bytes
from ..link.measured import BlockResult
from ..observe.memory import read_peak_bytes
from ..observe.recorder import INTERRUPTED, NEW_EPOCH
from .account import account_for
from .agreement import Bits, find_apart
from .parts import RankParts


def merge_ranks(payloads: Sequence[Mapping[str, Any]], script_ended: bool) -> BlockResult:
    """`payloads` in rank order: each the series of `measure_steps` and that rank's evidence.

    A step that was interrupted on any rank is left out.
    """
    # Of an arm that was given up single steps are told: it had no time for its whole pattern.
    period = 1 if payloads[0]["given_up"] else int(payloads[0]["period"])
    length = min(len(payload["step_time_s"]) for payload in payloads) // period * period
    flags = [max(payload["flags"][index] for payload in payloads) for index in range(length)]
    kept = choose_steps(flags, period)
    step_time_s, wall_s = merge_times(
        [[payload["step_time_s"][index] for index in kept] for payload in payloads]
    )
    samples = [sum(payload["samples"][index] for payload in payloads) for index in kept]
    losses, bad = merge_losses([payload["losses"][:length] for payload in payloads])
    checks, bad_checks = merge_checks([payload["loss_checks"] for payload in payloads])
    nonfinite = sum(bad[index] for index in kept) + bad_checks
    cycles = payloads[0]["cycles"]
    first = payloads[0]
    return BlockResult(
        steps=len(kept),
        excluded_steps=length - len(kept),
        period=period,
        step_time_s=tuple(step_time_s),
        segments=count_segments([cycles[index] for index in kept], cycles),
        samples_per_step=statistics.fmean(samples) if samples else 0.0,
        samples=sum(samples),
        step_samples=tuple(samples) if len(set(samples)) > 1 else (),
        wall_s=wall_s,
        warmup_steps=first["warmup_steps"],
        **account_for(payloads, length),
        losses=tuple(loss for index in kept if (loss := losses[index]) is not None),
        loss_checks=checks,
        diverged=nonfinite > 0,
        nonfinite_losses=nonfinite,
        peak_memory_bytes=max(payload["peak_memory_bytes"] for payload in payloads),
        bucket_bytes=tuple(first["bucket_bytes"]),
        **merge_evidence(payloads),
        script_ended=script_ended,
        switch_s=max(payload["switch_s"] for payload in payloads),
        given_up=first["given_up"],
        same_as=first["same_as"],
        relaunch_needed=first["relaunch_needed"],
        bit_steps=first["bit_steps"],
        bits_differ=first["bits_differ"],
        calibration=merge_calibrations([payload.get("calibration") for payload in payloads]),
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


def merge_evidence(payloads: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Sentences by knob: what one rank did not consume was not in force."""
    not_consumed: Dict[str, str] = {}
    for payload in payloads:
        not_consumed.update(payload["not_consumed"])
    kept = {
        kind: {knob: why for knob, why in payloads[0][kind].items() if knob not in not_consumed}
        for kind in ("consumed", "no_effect")
    }
    return {**kept, "not_consumed": not_consumed}


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


def collect_evidence(parts: RankParts, peak_bytes: int) -> Dict[str, Any]:
    """Of the strategy in force, as this rank's part of a result has it."""
    replicas = parts.list_replicas()
    evidence = parts.levers.prove(parts.backend, replicas)
    return {
        "peak_memory_bytes": peak_bytes,
        "bucket_bytes": parts.levers.reduction.list_bucket_bytes(replicas),
        "consumed": evidence.consumed,
        "not_consumed": evidence.not_consumed,
        "no_effect": evidence.no_effect,
    }


DRIFTED = (
    "The ranks held the same parameters before this race and different ones after it: a switch has broken their "
    "agreement. Nothing that it measured counts, nor what is measured in this launch from here on."
)


def merge_race(
    payloads: Sequence[Mapping[str, Any]],
    blocks: Sequence[str],
    bits_before: Sequence[Bits],
    script_ended: bool,
    drifted: str = "",
) -> Tuple[Dict[str, BlockResult], str]:
    """`payloads` in rank order: the results by their blocks, and a sentence where the ranks drifted apart.

    `bits_before` are the ranks' checksums of the parameters when the race began; `drifted` is the sentence of an
    earlier race of this launch.
    """
    # A script that ended inside left its ranks as it pleased: between two averagings, or with rank 0's best weights.
    if not script_ended:
        apart = find_apart([payload["bits"] for payload in payloads]).keys()
        drifted = drifted or (DRIFTED if apart - find_apart(bits_before).keys() else "")
    at_start, _ = merge_losses([payload["loss_at_start"] for payload in payloads])
    common: Dict[str, Any] = {"drifted": drifted, "loss_at_start": keep_whole(at_start)}
    merged = [
        merge_ranks([payload["arms"][place] for payload in payloads], script_ended)
        for place in range(len(blocks))
    ]
    if len(blocks) == 1:
        # A race of one arm has no turns: the block was measured in one go.
        common["segments"] = ()
    return {block: replace(result, **common) for block, result in zip(blocks, merged)}, drifted
