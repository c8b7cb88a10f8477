"""Merges what all ranks measured of one arm into the result that goes to the agent. Pure functions."""

from __future__ import annotations

import math
import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..calibrating.calibration_results import merge_calibrations
from ..observe.recorder import INTERRUPTED, NEW_EPOCH
from .account import account_for


def merge_ranks(payloads: Sequence[Mapping[str, Any]], script_ended: bool) -> Dict[str, Any]:
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
    return {
        "steps": len(kept),
        "excluded_steps": length - len(kept),
        "period": period,
        "step_time_s": step_time_s,
        "segments": count_segments([cycles[index] for index in kept], cycles),
        "samples_per_step": statistics.fmean(samples) if samples else 0.0,
        "samples": sum(samples),
        "wall_s": wall_s,
        "warmup_steps": first["warmup_steps"],
        **account_for(payloads, length),
        "losses": [losses[index] for index in kept],
        "loss_checks": checks,
        "diverged": nonfinite > 0,
        "nonfinite_losses": nonfinite,
        "peak_memory_bytes": max(payload["peak_memory_bytes"] for payload in payloads),
        "bucket_bytes": first["bucket_bytes"],
        **merge_evidence(payloads),
        "script_ended": script_ended,
        "switch_s": max(payload["switch_s"] for payload in payloads),
        "given_up": first["given_up"],
        "same_as": first["same_as"],
        "relaunch_needed": first["relaunch_needed"],
        "calibration": merge_calibrations([payload.get("calibration") for payload in payloads]),
    }


def merge_times(ranks: Sequence[Sequence[float]]) -> "tuple[List[float], float]":
    """The time of each step, and what all of them took by the clock of the rank for which they took longest.

    Ranks that wait for each other pass a boundary a little sooner or later: the slowest rank of every step would count
    each such delay, and never the step that it shortened. Their means do not, and are stretched to the clock's time.
    """
    means = [statistics.fmean(step) for step in zip(*ranks)]
    wall_s, told_s = max(map(math.fsum, ranks)), math.fsum(means)
    return [time_s * wall_s / told_s for time_s in means] if told_s > 0.0 else means, wall_s


def count_segments(kept: Sequence[int], cycles: Sequence[int]) -> List[int]:
    """Steps that count in each cycle, 0 where none does: the n-th entries of a race's arms belong together."""
    return [kept.count(cycle) for cycle in range(max(cycles, default=-1) + 1)]


def merge_evidence(payloads: Sequence[Mapping[str, Any]]) -> Dict[str, Dict[str, str]]:
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


def merge_checks(ranks: Sequence[Sequence[Sequence[Any]]]) -> "tuple[List[List[Optional[float]]], int]":
    """The means of every loss check, none where a loss is missing, because batch is held against batch; and how many
    were not finite."""
    found = [merge_losses(series) for series in zip(*ranks)]
    checks = [losses for losses, _ in found]
    return ([] if any(None in losses for losses in checks) else checks), sum(sum(bad) for _, bad in found)
