"""Where the mean step of each rank goes, what the ranks wait for each other, and which of them is late.

Pure functions. A rank's parts add up to its mean step: each moment was marked for one of them. What a rank waits for
the others is the communication that it sees beyond the rank that sees least of the same: the last one to come waits
for the wire only.
"""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..observe.recorder import INTERRUPTED, PHASES

MOST_ACCOUNTS = 64
"""Ranks up to which every one's account is told."""
LATE_SHARE = 0.1
"""Share of the step that the others wait for a rank which is called late."""
SLOW_STEP, SLOW_PHASE = 1.5, 2.0
"""In times of the median: such a phase in such a step is a stall."""
LEAST_STEPS = 3
WORK = (
    "data_wait_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "own_code_s",
    "evaluation_s",
    "garbage_s",
    "stalls_s",
)
"""What a late rank may do."""

Account = Dict[str, Optional[float]]
Payload = Mapping[str, Any]


def account_for(payloads: Sequence[Payload], length: int) -> Dict[str, Any]:
    """`payloads` in rank order, of which the first `length` steps count, evaluations and saves included."""
    reduced, wire_s = _split_reduction(payloads, length)
    called_s = _split_collectives(payloads, length)
    accounts = [
        _account_for_rank(payload, length, reduced[rank], wire_s, called_s[rank])
        for rank, payload in enumerate(payloads)
    ]
    steps_s = [_mean(payload["step_time_s"][:length]) for payload in payloads]
    waits = [account["wait_s"] or 0.0 for account in accounts]
    # Where DDP was not asked, what a rank waits in its reduction is not known: no rank can be called late.
    is_known = reduced[0] is not None or not any(payload["replicas"] for payload in payloads)
    late = _find_late(accounts, max(steps_s, default=0.0)) if is_known else None
    shown = late["rank"] if late is not None else waits.index(statistics.median_low(waits))
    return {
        "phases": accounts[shown],
        "phases_rank": shown,
        "per_rank_phases": accounts if len(accounts) <= MOST_ACCOUNTS else [],
        "per_rank_step_time_s": steps_s,
        "per_rank_work_s": [step_s - wait_s for step_s, wait_s in zip(steps_s, waits)],
        "late": late,
    }


def _split_reduction(payloads: Sequence[Payload], length: int) -> Tuple[List[Optional[float]], float]:
    """What each rank's mean step spends in reducing gradients that nothing hid, and how much of it is the wire's."""
    apart = [_mean(_series(payload, "reduction_s", length)) for payload in payloads]
    if any(payload["averages"] for payload in payloads):
        return [*apart], min(apart)
    exposed: List[float] = []
    seen: List[Sequence[Optional[float]]] = []
    for payload, apart_s in zip(payloads, apart):
        backward = _series(payload, "backward_s", length)
        known = payload["profiled"] or list(zip(backward, payload["exposed_s"]))
        own = [took - waited for took, waited in known if waited is not None]
        if not own:
            return [None] * len(payloads), 0.0
        seen.append([waited for _, waited in known])
        # Its own computing is that of the steps in which DDP was asked; all beyond that is communication.
        exposed.append(max(0.0, _mean(backward) - max(0.0, _mean(own))) + apart_s)
    shared = [min(s for s in step if s is not None) for step in zip(*seen) if None not in step]
    return ([*exposed], _mean(shared) + min(apart)) if shared else ([None] * len(payloads), 0.0)


def _split_collectives(payloads: Sequence[Payload], length: int) -> List[Tuple[float, float]]:
    """Of each rank's mean step, what its other collectives take, and what it waits in them for other ranks.

    The n-th of a step is the same on all ranks. Where they made different ones, nothing is known of waiting.
    """
    calls = [payload["collectives"][:length] or [[]] * length for payload in payloads]
    whole = [0.0] * len(payloads)
    waited = [0.0] * len(payloads)
    for step in zip(*calls):
        alike = len({len(made) for made in step}) == 1
        fastest = [min(same) for same in zip(*step)] if alike else []
        for rank, made in enumerate(step):
            whole[rank] += sum(made)
            waited[rank] += sum(made) - sum(fastest) if alike else 0.0
    return (
        [(total / length, wait / length) for total, wait in zip(whole, waited)]
        if length
        else [(0.0, 0.0) for _ in payloads]
    )


def _account_for_rank(
    payload: Payload, length: int, reduced_s: Optional[float], wire_s: float, called: Tuple[float, float]
) -> Account:
    steps = payload["step_time_s"][:length]
    exposed_s = None if reduced_s is None else min(wire_s, reduced_s)
    apart_s = _mean(_series(payload, "reduction_s", length))
    in_backward_s = 0.0 if reduced_s is None else reduced_s - apart_s
    backward = _series(payload, "backward_s", length)
    alone = [b - e if e is not None else None for b, e in zip(backward, payload["exposed_s"])]
    stalls = {
        "forward_s": _find_stalls(steps, _series(payload, "forward_s", length), payload["period"]),
        "backward_s": _find_stalls(steps, alone, payload["period"]),
        "optimizer_s": _find_stalls(steps, _series(payload, "optimizer_s", length), payload["period"]),
    }
    means = {name: _mean(_series(payload, name, length)) - stalls.get(name, 0.0) for name in PHASES}
    evaluation_s = _find_evaluation(_series(payload, "own_code_s", length), payload["flags"])
    whole_s, waited_s = called
    return {
        "data_wait_s": means["data_wait_s"],
        "forward_s": means["forward_s"],
        "backward_s": means["backward_s"] - in_backward_s,
        "exposed_comm_s": exposed_s,
        # Where DDP was not asked, what it exchanges in forward is communication of an unknown kind.
        "collectives_s": whole_s - waited_s + (apart_s if reduced_s is None else 0.0),
        "wait_s": waited_s + (reduced_s or 0.0) - (exposed_s or 0.0),
        "optimizer_s": means["optimizer_s"],
        "own_code_s": means["own_code_s"] - evaluation_s,
        "evaluation_s": evaluation_s,
        "garbage_s": means["garbage_s"],
        "stalls_s": sum(stalls.values()),
    }


def _find_stalls(steps: Sequence[float], times: Sequence[Optional[float]], period: int) -> float:
    """What a phase takes in slow steps beyond its median, in the mean step; None is a step that is not known."""
    known = [took for took in times if took is not None]
    if period > 1 or len(known) < LEAST_STEPS:
        return 0.0
    usual_s, median_s = statistics.median(known), statistics.median(steps)
    slow = [
        took - usual_s
        for took, step_s in zip(times, steps)
        if took is not None and took > SLOW_PHASE * usual_s and step_s > SLOW_STEP * median_s
    ]
    return sum(slow) / len(steps)


def _find_evaluation(own_s: Sequence[float], flags: Sequence[int]) -> float:
    """What steps with an evaluation or a save spend in the script's own code beyond the others, in the mean step."""
    usual = [seconds for seconds, flag in zip(own_s, flags) if flag < INTERRUPTED]
    if not usual or len(usual) == len(own_s):
        return 0.0
    mean_s = _mean(usual)
    return max(0.0, sum(own_s) - len(own_s) * mean_s) / len(own_s)


def _find_late(accounts: Sequence[Account], step_s: float) -> Optional[Dict[str, Any]]:
    """The rank that waits least while the others wait, and the part in which it exceeds them most."""
    waits = [account["wait_s"] or 0.0 for account in accounts]
    if len(waits) < 2 or step_s <= 0:
        return None
    rank = waits.index(min(waits))
    waited_s = statistics.median(waits[:rank] + waits[rank + 1 :]) - waits[rank]
    if waited_s < LATE_SHARE * step_s:
        return None
    others = [account for place, account in enumerate(accounts) if place != rank]
    excess = {
        part: (accounts[rank][part] or 0.0) - statistics.median(account[part] or 0.0 for account in others)
        for part in WORK
    }
    part = max(excess, key=lambda name: excess[name])
    return {"rank": rank, "waited_s": waited_s, "part": part, "excess_s": excess[part]}


def _series(payload: Payload, name: str, length: int) -> Sequence[float]:
    found: Sequence[float] = payload["parts"].get(name) or [0.0] * length
    return found[:length]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
