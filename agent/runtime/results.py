"""Merges what all ranks measured in one block into the result that goes to the agent. Pure functions."""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .calibration_results import merge_calibrations
from .recorder import INTERRUPTED, NEW_EPOCH

PHASES = ("data_wait_s", "forward_s", "backward_s", "optimizer_s", "other_s")


def merge_ranks(payloads: Sequence[Mapping[str, Any]], script_ended: bool) -> Dict[str, Any]:
    """`payloads` in rank order: each the series of `measure_steps` and that rank's evidence.

    A step counts with its slowest rank; a step that was interrupted on any rank is left out.
    """
    period = int(payloads[0]["period"])
    length = min(len(payload["step_time_s"]) for payload in payloads) // period * period
    flags = [max(payload["flags"][index] for payload in payloads) for index in range(length)]
    kept = choose_steps(flags, period)
    step_time_s = [max(payload["step_time_s"][index] for payload in payloads) for index in kept]
    samples = [sum(payload["samples"][index] for payload in payloads) for index in kept]
    losses, diverged = merge_losses([payload["losses"][:length] for payload in payloads])
    not_consumed: Dict[str, str] = {}
    for payload in payloads:
        not_consumed.update(payload["not_consumed"])
    first = payloads[0]
    return {
        "steps": len(kept),
        "excluded_steps": length - len(kept),
        "period": period,
        "step_time_s": step_time_s,
        "samples_per_step": statistics.fmean(samples) if samples else 0.0,
        "samples": sum(samples),
        "wall_s": max((sum(p["step_time_s"][index] for index in kept) for p in payloads), default=0.0),
        "warmup_steps": first["warmup_steps"],
        "per_rank_step_time_s": [_median([p["step_time_s"][index] for index in kept]) for p in payloads],
        "breakdown": break_down(payloads, kept),
        "per_rank_work_s": [measure_work(payload, kept) for payload in payloads],
        "losses": losses,
        "diverged": diverged,
        "peak_memory_bytes": max(payload["peak_memory_bytes"] for payload in payloads),
        "bucket_bytes": first["bucket_bytes"],
        "consumed": {knob: why for knob, why in first["consumed"].items() if knob not in not_consumed},
        "not_consumed": not_consumed,
        "no_effect": {knob: why for knob, why in first["no_effect"].items() if knob not in not_consumed},
        "script_ended": script_ended,
        "switch_s": max(payload["switch_s"] for payload in payloads),
        "given_up": bool(first.get("given_up", False)),
        "calibration": merge_calibrations([payload.get("calibration") for payload in payloads]),
    }


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


def merge_losses(series: Sequence[Sequence[Any]]) -> "tuple[List[Optional[float]], bool]":
    """Mean over ranks for every timed step (also the excluded ones), and whether any was not finite."""
    diverged = any(loss == "nan" for ranks in series for loss in ranks)
    merged: List[Optional[float]] = []
    for losses in zip(*series):
        if any(loss is None or loss == "nan" for loss in losses):
            merged.append(None)
        else:
            merged.append(statistics.fmean(losses))
    return merged, diverged


def break_down(payloads: Sequence[Mapping[str, Any]], kept: Sequence[int]) -> Dict[str, Any]:
    """Median step by phase, for the median rank and the slowest: the one whose own work takes longest.

    Phases do not overlap: backward has no exposed_comm.
    """
    works = [measure_work(payload, kept) for payload in payloads]
    slowest = max(range(len(works)), key=lambda rank: works[rank])
    ranks = [_split_step(payload, kept) for payload in payloads]
    table: Dict[str, Any] = {phase: _rank_summary([r[phase] for r in ranks], slowest) for phase in PHASES}
    exposed = [payload.get("exposed_comm_s") for payload in payloads]
    table["exposed_comm_s"] = None if None in exposed else _rank_summary(exposed, slowest)
    return table


def measure_work(payload: Mapping[str, Any], kept: Sequence[int]) -> float:
    """Seconds of the median step in which the rank is busy itself: reading, computing, its optimizer.

    Synchronised ranks take equally long steps: a slow one shows here. What a step does besides (`other_s`) is left
    out, because it may be a wait for the others as well.
    """
    split = _split_step(payload, kept)
    return sum(split[phase] for phase in PHASES if phase != "other_s")


def _split_step(payload: Mapping[str, Any], kept: Sequence[int]) -> Dict[str, float]:
    medians = {p: _median([payload[p][i] for i in kept]) for p in PHASES[:4]}
    in_boundary = float(payload.get("boundary_s", 0.0))
    step_s = _median([payload["step_time_s"][i] for i in kept])
    # With a longer period the median step is one without averaging, so there is nothing to take off.
    averaging = in_boundary if payload["period"] == 1 else 0.0
    # Waiting for data is the host's time, the rest the device's: only where the device idles, it waits as well.
    device_s = medians["forward_s"] + medians["backward_s"] + medians["optimizer_s"] + averaging
    medians["data_wait_s"] = min(medians["data_wait_s"], max(0.0, step_s - device_s))
    medians["other_s"] = max(0.0, step_s - device_s - medians["data_wait_s"])
    waiting = payload.get("exposed_comm_s")
    if waiting is not None:
        medians["backward_s"] = max(0.0, medians["backward_s"] - (waiting - in_boundary))
    return medians


def _rank_summary(values: Sequence[float], slowest: int) -> Dict[str, Any]:
    return {"median": _median(values), "worst": values[slowest], "worst_rank": slowest}


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values)) if values else 0.0
