"""Where the mean step of each rank goes, what the ranks wait for each other, and which of them is late.

Pure functions. A rank's parts add up to its mean step: each moment was marked for one of them. What a rank waits for
the others is what an exchange takes it beyond the rank that it takes least: the last one to come waits for the wire
only.
"""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..link.measured import LateRank, Phases
from ..observe.recorder import INTERRUPTED, PHASES
from .rank_arm import RankArm

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
    "compiling_s",
    "stalls_s",
)
"""What a late rank may do."""

MUCH_LONGER = 1.5
"""In times of the fastest rank's: such an exchange is waited for in one step alone."""

Split = Tuple[float, float]
"""Seconds on the wire, and of waiting for other ranks."""


def account_for(arms: Sequence[RankArm], length: int) -> Dict[str, Any]:
    """`arms` in rank order: one arm, of which the first `length` steps count, evaluations and saves included."""
    reduced = _split_reduction(arms, length)
    called = _split_collectives(arms, length)
    sent_waits = _find_waits([arm.read_phase("buffers_s", length) for arm in arms])
    accounts = [
        _account_for_rank(arm, length, reduced[rank], called[rank], sent_waits[rank])
        for rank, arm in enumerate(arms)
    ]
    steps_s = [_mean(arm.step_time_s[:length]) for arm in arms]
    waits = [account.wait_s for account in accounts]
    # Where DDP was not asked, what a rank waits in its reduction is not known: no rank can be called late.
    is_known = reduced[0] is not None or not any(arm.replicas for arm in arms)
    saves = [_mean(arm.saves_beside[:length]) for arm in arms]
    late = _find_late(accounts, max(steps_s, default=0.0), saves) if is_known else None
    shown = late.rank if late is not None else waits.index(statistics.median_low(waits))
    return {
        "phases": accounts[shown],
        "phases_rank": shown,
        "per_rank_phases": tuple(accounts) if len(accounts) <= MOST_ACCOUNTS else (),
        "per_rank_step_time_s": tuple(steps_s),
        "per_rank_work_s": tuple(step_s - wait_s for step_s, wait_s in zip(steps_s, waits)),
        "late": late,
        "saves_beside": max(saves, default=0.0),
    }


def _split_reduction(arms: Sequence[RankArm], length: int) -> List[Optional[Split]]:
    """What each rank's mean step spends in reducing gradients that nothing hid, by the wire and by waiting.

    All None where that is not known.
    """
    apart = [arm.read_phase("reduction_s", length) for arm in arms]
    split = [(_mean(times) - waited_s, waited_s) for times, waited_s in zip(apart, _find_waits(apart))]
    if len(arms) == 1 or any(arm.averages for arm in arms):
        return [*split]
    known = [arm.profiled or list(zip(arm.read_phase("backward_s", length), arm.exposed_s)) for arm in arms]
    told = [steps for steps in zip(*known) if all(waited is not None for _, waited in steps)]
    if not told:
        return [None] * len(arms)
    exposed = [[waited for _, waited in steps] for steps in zip(*told)]
    found: List[Optional[Split]] = []
    for rank, waited_s in enumerate(_find_waits(exposed)):
        # Its own computing is that of the steps in which DDP was asked; all beyond that is communication.
        own_s = max(0.0, _mean([took - waited for took, waited in (steps[rank] for steps in told)]))
        whole_s = max(0.0, _mean(arms[rank].read_phase("backward_s", length)) - own_s)
        wire_s = min(whole_s, _mean(exposed[rank]) - waited_s)
        found.append((split[rank][0] + wire_s, split[rank][1] + whole_s - wire_s))
    return found


def _split_collectives(arms: Sequence[RankArm], length: int) -> List[Split]:
    """Of each rank's mean step, what its other collectives take on the wire, and what it waits in them.

    The n-th of a step is the same on all ranks. Where they made different ones, nothing is known of waiting. Steps in
    which all ranks evaluate or save hold collectives of that: the others tell what training calls.
    """
    flags = zip(*(arm.flags[:length] for arm in arms))
    usual = [place for place, ranks in enumerate(flags) if min(ranks) < INTERRUPTED] or range(length)
    made = [arm.collectives[:length] or [[]] * length for arm in arms]
    calls = [[steps[place] for place in usual] for steps in made]
    alike = [step for step in zip(*calls) if len({len(made) for made in step}) == 1]
    most = max((len(step[0]) for step in alike), default=0)
    by_call = [
        [[made[place] if place < len(made) else 0.0 for made in rank] for rank in zip(*alike)]
        for place in range(most)
    ]
    in_turn = [sum(waits) for waits in zip(*map(_find_turns, by_call))] or [0.0] * len(arms)
    throughout = _find_delays([[sum(made) for made in rank] for rank in zip(*alike)])
    share = len(alike) / len(usual) if length else 0.0
    waits = [share * max(both) for both in zip(in_turn, throughout or in_turn)]
    wholes = [_mean([*map(sum, rank)]) for rank in calls]
    # No more than in all steps, so that a rank's parts add up.
    parts = [
        min(1.0, _mean([*map(sum, rank)]) / whole_s) if whole_s else 0.0
        for rank, whole_s in zip(made, wholes)
    ]
    return [
        (part * (whole_s - waited_s), part * waited_s)
        for part, whole_s, waited_s in zip(parts, wholes, waits)
    ]


def _find_waits(ranks: Sequence[Sequence[float]]) -> List[float]:
    """What each rank waits for others in the mean step, from what one and the same exchange takes on all of them.

    Ranks come to it at slightly different times: that alone is no waiting, but a part of how long it takes.
    """
    return [max(both) for both in zip(_find_turns(ranks), _find_delays(ranks))]


def _find_delays(ranks: Sequence[Sequence[float]]) -> List[float]:
    """For a rank that comes later throughout."""
    means = [_mean(times) for times in ranks]
    return [mean_s - min(means) for mean_s in means]


def _find_turns(ranks: Sequence[Sequence[float]]) -> List[float]:
    """For ranks that come much later now and then."""
    fastest = [min(step) for step in zip(*ranks)]
    return [
        _mean([took - least if took > MUCH_LONGER * least else 0.0 for took, least in zip(times, fastest)])
        for times in ranks
    ]


def _account_for_rank(
    arm: RankArm, length: int, reduced: Optional[Split], called: Split, sent_wait_s: float
) -> Phases:
    """`sent_wait_s` is what it waits in the broadcast of buffers."""
    steps = arm.step_time_s[:length]
    wire_s, reduction_wait_s = reduced or (0.0, 0.0)
    apart_s = _mean(arm.read_phase("reduction_s", length))
    in_backward_s = 0.0 if reduced is None else wire_s + reduction_wait_s - apart_s
    backward = arm.read_phase("backward_s", length)
    alone = [b - e if e is not None else None for b, e in zip(backward, arm.exposed_s)]
    stalls = {
        "forward_s": _find_stalls(steps, arm.read_phase("forward_s", length), arm.period),
        "backward_s": _find_stalls(steps, alone, arm.period),
        "optimizer_s": _find_stalls(steps, arm.read_phase("optimizer_s", length), arm.period),
    }
    means = {name: _mean(arm.read_phase(name, length)) - stalls.get(name, 0.0) for name in PHASES}
    evaluated = {
        name: _find_evaluation(arm.read_phase(name, length), arm.flags)
        for name in ("own_code_s", "data_wait_s")
    }
    call_s, waited_s = called
    return Phases(
        data_wait_s=means["data_wait_s"] - evaluated["data_wait_s"],
        forward_s=means["forward_s"],
        backward_s=means["backward_s"] - in_backward_s,
        exposed_comm_s=None if reduced is None else wire_s,
        # Where DDP was not asked, what it exchanges in forward is communication of an unknown kind.
        buffers_s=means["buffers_s"] - sent_wait_s,
        collectives_s=call_s + (apart_s if reduced is None else 0.0),
        wait_s=waited_s + reduction_wait_s + sent_wait_s,
        optimizer_s=means["optimizer_s"],
        own_code_s=means["own_code_s"] - evaluated["own_code_s"],
        evaluation_s=sum(evaluated.values()) + means["collectives_s"] - call_s - waited_s,
        garbage_s=means["garbage_s"],
        compiling_s=means["compiling_s"],
        stalls_s=sum(stalls.values()),
    )


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


def _find_evaluation(times: Sequence[float], flags: Sequence[int]) -> float:
    """What steps with an evaluation or a save spend in a phase beyond the others, in the mean step."""
    usual = [seconds for seconds, flag in zip(times, flags) if flag < INTERRUPTED]
    if not usual or len(usual) == len(times):
        return 0.0
    return max(0.0, _mean(times) - _mean(usual))


def _find_late(accounts: Sequence[Phases], step_s: float, saves: Sequence[float]) -> Optional[LateRank]:
    """The rank that waits least while the others wait, and the part in which it exceeds them most. `saves` are the
    ranks' shares of steps beside which they save."""
    waits = [account.wait_s for account in accounts]
    if len(waits) < 2 or step_s <= 0:
        return None
    rank = waits.index(min(waits))
    waited_s = statistics.median(waits[:rank] + waits[rank + 1 :]) - waits[rank]
    if waited_s < LATE_SHARE * step_s:
        return None
    others = [account for place, account in enumerate(accounts) if place != rank]
    excess = {
        part: getattr(accounts[rank], part) - statistics.median(getattr(one, part) for one in others)
        for part in WORK
    }
    part = max(excess, key=lambda name: excess[name])
    saves_beside = max(0.0, saves[rank] - statistics.median([*saves[:rank], *saves[rank + 1 :]]))
    return LateRank(rank, waited_s, part, excess[part], saves_beside)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
