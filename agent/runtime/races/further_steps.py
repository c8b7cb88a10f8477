"""Steps of a race after the timed ones, of which more is looked at than their time: calibration, and weighing."""

from __future__ import annotations

from typing import Any, List

from ..calibrating.calibration import CalibrationSteps
from ..calibrating.ceiling import Ceiling
from ..calibrating.link_sweep import LinkSweep
from ..facts import count_gradient_bytes
from ..link import beat
from .loss_check import Steps
from .order import RaceRules
from .parts import RankParts


def watch_steps(parts: RankParts, watch: Any) -> Steps:
    """From this boundary on `watch` hears what the script does in each step, until its `end_step` says that it was the
    last one."""
    listeners = parts.levers.events.listeners
    listeners.insert(0, watch)
    while (step := (yield)) is None or not watch.end_step(step):
        pass
    listeners.remove(watch)


def can_calibrate(parts: RankParts, rules: RaceRules) -> bool:
    """Whether there is something that the rules ask for: gradients and links of DistributedDataParallel models only."""
    return rules.ceiling or (rules.calibrate and bool(_list_linked(parts)))


def begin_calibration(parts: RankParts, rules: RaceRules) -> CalibrationSteps:
    """At the boundary from which on it watches."""
    parts.enter(beat.CALIBRATING)
    ceiling = Ceiling(parts.gather_training(), parts.device) if rules.ceiling else None
    watched = _list_linked(parts) if rules.calibrate else []
    return CalibrationSteps(watched, parts.levers.replaces_reduction, parts.clock, ceiling)


def measure_rates(parts: RankParts, calibration: CalibrationSteps) -> None:
    """After its last step, on every rank."""
    sweep = None
    if replicas := _list_linked(parts):
        communicators = parts.levers.reduction.communicators
        sweep = LinkSweep(parts.exchange, communicators, parts.device, parts.clock, parts.local_world_size)
    calibration.measure_rates(sweep, sum(map(count_gradient_bytes, replicas)))


def _list_linked(parts: RankParts) -> List[Any]:
    return parts.list_replicas() if parts.world_size > 1 else []
