"""What one rank measured in a race, and how rank 0 gathers it from all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..calibrating.calibration_results import RankCalibration
from ..levers.lever import Evidence
from ..link.exchange import Exchange
from .agreement import Bits
from .close_look import RankLook

Loss = Union[float, str, None]
""""nan" is one that was not finite, None one that the script did not show."""


@dataclass(frozen=True)
class RankArm:
    """Of one arm. The first lists have an entry for each timed step; times are seconds of this rank's own."""

    step_time_s: List[float]
    samples: List[float]
    flags: List[int]
    """0, or how the script interrupted the step (`NEW_EPOCH`, `INTERRUPTED`)."""
    losses: List[Loss]
    cycles: List[int]
    exposed_s: List[Optional[float]]
    """Of its backward, communication that no computing hid; None where DDP was not asked."""
    saves_beside: List[bool]
    """Whether another thread of the rank saved meanwhile."""
    phases: Dict[str, List[float]] = field(default_factory=dict)
    """By the names of `PHASES`; one that never began is left out."""
    collectives: List[List[float]] = field(default_factory=list)
    """Of each call that waited for other ranks; empty where no step has one."""
    profiled: List[Tuple[float, Optional[float]]] = field(default_factory=list)
    """Backward and `exposed_s` of each step of its profile."""
    loss_checks: List[List[Loss]] = field(default_factory=list)
    """Of each segment's loss check."""
    replicas: bool = False
    """Whether DDP reduces."""
    averages: bool = False
    """Whether what its levers exchange at boundaries is all the communication there is."""
    period: int = 1
    warmup_steps: int = 0
    switch_s: float = 0.0
    peak_memory_bytes: int = 0
    bucket_bytes: List[int] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)
    given_up: bool = False
    same_as: str = ""
    relaunch_needed: str = ""
    bit_steps: int = 0
    bits_differ: str = ""
    calibration: Optional[RankCalibration] = None
    work: Optional[Dict[str, Any]] = None
    """What was weighed, as plain JSON."""

    def read_phase(self, name: str, length: int) -> Sequence[float]:
        """Seconds of that phase in each of the first `length` steps."""
        return (self.phases.get(name) or [0.0] * length)[:length]


@dataclass(frozen=True)
class RankRace:
    """Of all arms of a race."""

    arms: List[RankArm]
    bits: Bits
    """Checksums of the parameters after it."""
    loss_at_start: List[Loss] = field(default_factory=list)
    """Of the loss check before the first segment."""
    look: Optional[RankLook] = None
    """Where the rules ask for a close one."""


def gather_race(exchange: Exchange, own: RankRace, timeout_s: float) -> Optional[List[RankRace]]:
    """All ranks' parts in rank order on rank 0, None elsewhere. Every rank calls it."""
    told = exchange.gather(_encode(own), "the results of a race", timeout_s)
    return [_decode(race) for race in told] if told is not None else None


def _encode(race: RankRace) -> Dict[str, Any]:
    """Plain JSON."""
    arms = [
        {
            **vars(arm),
            "evidence": vars(arm.evidence),
            "calibration": arm.calibration and vars(arm.calibration),
        }
        for arm in race.arms
    ]
    return {**vars(race), "arms": arms, "look": race.look and vars(race.look)}


def _decode(race: Mapping[str, Any]) -> RankRace:
    arms = []
    for arm in race["arms"]:
        calibration = arm["calibration"] and RankCalibration(**arm["calibration"])
        arms.append(RankArm(**{**arm, "evidence": Evidence(**arm["evidence"]), "calibration": calibration}))
    return RankRace(**{**race, "arms": arms, "look": race["look"] and RankLook(**race["look"])})
