"""One arm of a race: how far this rank has come with it, and what it measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from ..calibrating.calibration_results import RankCalibration
from ..levers.lever import Evidence
from ..observe.clock import Clock
from ..observe.recorder import BACKWARD, PHASES, StepMarks, read_losses, split_step
from .order import ArmOrder
from .rank_arm import RankArm
from .results import choose_steps
from .verdicts import cap_steps


@dataclass
class Arm:
    """The same object lives on every rank; its times are this rank's own."""

    order: ArmOrder
    place: int
    """0 is the arm that the others are held against."""
    period: int = 1
    batches_per_step: int = 1
    """The script's own batches in one: so many of the script's steps one of its steps stands for."""
    warmup_steps: int = 0
    """Untimed steps before its first segment."""
    least_segment: int = 0
    lead_in: int = 1
    """Untimed steps after a switch to it."""
    asked: int = 0
    """Batches that its loader's workers are asked for ahead."""
    workers: int = 0
    """How many there are."""
    is_strained: bool = False
    """Whether they hardly keep up with it, or do not."""
    queued: int = 0
    """Batches that were ready at the end of its last turn."""
    starts_slowly: bool = False
    """Whether its first steps say nothing of its pace."""
    warm: List[StepMarks] = field(default_factory=list)
    timed: List[StepMarks] = field(default_factory=list)
    cycles: List[int] = field(default_factory=list)
    """The cycle of each timed step."""
    switches_s: List[float] = field(default_factory=list)
    profiled: List[StepMarks] = field(default_factory=list)
    loss_checks: List[List[StepMarks]] = field(default_factory=list)
    """The steps of each segment's loss check."""
    averages_at_boundaries: bool = False
    """Whether what its levers exchange at boundaries is all the communication there is."""
    in_force: str = ""
    """What the levers came to, in a text that can be compared."""
    peak_bytes: int = 0
    bucket_bytes: List[int] = field(default_factory=list)
    evidence: Optional[Evidence] = None
    """What the levers could prove, once they were asked."""
    given_up: bool = False
    same_as: str = ""
    """Block of the arm whose strategy turned out to be in force here too."""
    relaunch_needed: str = ""
    bit_steps: int = 0
    """Steps after which every bit was the first arm's on all ranks."""
    bits_differ: str = ""
    calibration: Optional[RankCalibration] = None
    work: Optional[Dict[str, Any]] = None

    @property
    def races(self) -> bool:
        """Whether it still takes turns."""
        return not (self.given_up or self.same_as or self.relaunch_needed)

    def take_warm(self, step: Optional[StepMarks]) -> None:
        if step is not None:
            self.warm.append(step)

    def book(self, steps: List[StepMarks], cycle: int, turn: int) -> None:
        """Steps from the beginning of that cycle on, `turn` of them in each."""
        self.timed += steps
        self.cycles += [cycle + index // turn for index in range(len(steps))]

    def count_warm_steps(self) -> None:
        """Its first steps are all that there will be: being given up is a measurement too."""
        self.timed = self.warm[1:] or list(self.warm)
        self.cycles = [0] * len(self.timed)

    def forget_after(self, cycle: int) -> None:
        """Drops the steps of cycles from `cycle` on: the others were not measured in them."""
        kept = [index for index, found in enumerate(self.cycles) if found < cycle]
        self.timed = [self.timed[index] for index in kept]
        self.cycles = [self.cycles[index] for index in kept]
        del self.loss_checks[cycle:]

    def count_batches(self) -> int:
        """Steps of the script's own that its timed ones stand for."""
        return len(self.timed) * self.batches_per_step

    def count_samples_of_step(self) -> float:
        """Samples of one step of the script's own; 0 where its steps do not tell."""
        return sum(step.samples for step in self.timed) / max(1, self.count_batches())

    def count_whole(self, length: int) -> int:
        """Its steps that have as many samples as `length` of the script's own, in whole periods."""
        span = self.period * self.batches_per_step
        return -(-length // span) * self.period

    def read_times(self, clock: Clock) -> List[float]:
        """This rank's seconds for the samples of one step of the script's own, of each step that counts.

        The clock has settled.
        """
        return [self._measure(index, clock) for index in self._choose()]

    def count_kept(self) -> int:
        return len(self._choose())

    def read_cycles(self, clock: Clock, cycles: int) -> List[Optional[float]]:
        """Mean capped step of each cycle, None for one without a step that counts."""
        kept = self._choose()
        times = cap_steps([self._measure(index, clock) for index in kept])
        sums: Dict[int, List[float]] = {}
        for index, time_s in zip(kept, times):
            sums.setdefault(self.cycles[index], []).append(time_s)
        return [statistics.fmean(sums[cycle]) if cycle in sums else None for cycle in range(cycles)]

    def read_late(self, clock: Clock, cycle: int) -> List[float]:
        """Of the steps of one cycle that count, the later half."""
        times = [self._measure(index, clock) for index in self._choose() if self.cycles[index] == cycle]
        return times[len(times) // 2 :]

    def read_warm_times(self, clock: Clock) -> List[float]:
        return [clock.measure(step.start, step.end) / self.batches_per_step for step in self.warm]

    def estimate_step_s(self, clock: Clock) -> float:
        """Median over the second half of the warm-up, or of the timed steps where there are enough; as `read_times`."""
        if len(self.timed) > 2:
            return statistics.median(self.read_times(clock) or [0.0])
        times = self.read_warm_times(clock)
        return statistics.median(times[len(times) // 2 :]) if times else 0.0

    @property
    def switch_s(self) -> float:
        """Typical time of switching to it; the first time it was built."""
        return statistics.median(self.switches_s[1:] or self.switches_s) if self.switches_s else 0.0

    def measure(self, clock: Clock, replicas: bool, has_nested: bool) -> RankArm:
        """This rank's part of the result; the clock has settled.

        `replicas`: whether DDP reduces. Of a forward in which several backwards run (`has_nested`) it times the last.
        """
        steps = self.timed
        split = [split_step(step, clock) for step in steps]
        collectives = [calls for _, calls in split]
        phases = zip(PHASES, map(list, zip(*(parts for parts, _ in split))))
        profiled = [(split_step(step, clock)[0][BACKWARD], step.exposed_s) for step in self.profiled]
        return RankArm(
            step_time_s=[clock.measure(step.start, step.end) for step in steps],
            samples=[step.samples for step in steps],
            flags=[step.flag for step in steps],
            losses=read_losses([step.loss for step in steps]),
            cycles=self.cycles,
            exposed_s=[None if has_nested else step.exposed_s for step in steps],
            saves_beside=[step.saves_beside for step in steps],
            phases={name: times for name, times in phases if any(times)},
            collectives=collectives if any(collectives) else [],
            profiled=[] if has_nested else profiled,
            loss_checks=[read_losses([step.loss for step in check]) for check in self.loss_checks],
            replicas=replicas,
            averages=self.averages_at_boundaries,
            period=self.period,
            warmup_steps=len(self.warm) + bool(self.timed),
            switch_s=self.switch_s,
            peak_memory_bytes=self.peak_bytes,
            bucket_bytes=self.bucket_bytes,
            evidence=self.evidence or Evidence(),
            given_up=self.given_up,
            same_as=self.same_as,
            relaunch_needed=self.relaunch_needed,
            bit_steps=self.bit_steps,
            bits_differ=self.bits_differ,
            calibration=self.calibration,
            work=self.work,
        )

    def _choose(self) -> List[int]:
        whole = len(self.timed) // self.period * self.period
        return choose_steps([step.flag for step in self.timed[:whole]], self.period)

    def _measure(self, index: int, clock: Clock) -> float:
        step = self.timed[index]
        return float(clock.measure(step.start, step.end)) / self.batches_per_step
