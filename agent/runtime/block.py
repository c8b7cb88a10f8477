"""One block: an instruction of the agent and how far this rank has come with it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from .early_end import GIVEN_UP, GO_ON, average_periods, judge_timing, plan_checkpoints
from .recorder import INTERRUPTED, StepMarks

if TYPE_CHECKING:
    from .calibration import CalibrationSteps


class Stage(Enum):
    """A block's stretches, in order."""

    WARMING_UP = "warming_up"
    SETTLING = "settling"
    """One untimed step after the ranks agreed on the number of timed ones, so that devices are busy again."""
    TIMING = "timing"
    PROFILING = "profiling"
    """Further steps in which DDP logs its own communication; they are not timed."""
    CALIBRATING = "calibrating"
    """Further steps in which gradients are watched; links are measured after the last one."""


@dataclass(frozen=True)
class Instruction:
    """What the agent asked for."""

    block_id: str
    overrides: Mapping[str, Any]
    """Knob values on top of the baseline; empty means the baseline itself."""
    warmup_steps: int = 5
    min_steps: int = 20
    max_steps: int = 200
    target_s: float = 2.0
    """Seconds of timed steps to aim at."""
    profile_steps: int = 3
    give_up_s: Optional[float] = None
    """A strategy whose steps are surely slower than this many seconds is not timed to the end."""
    target_error: Optional[float] = None
    """Timing stops, from `min_steps` on, once the standard error of ln(step time) is at most this."""
    calibrate: bool = False
    """Watch gradients and measure links after the timed steps."""


def parse_instruction(message: Mapping[str, Any]) -> Instruction:
    """Fields that a newer agent added are ignored; missing ones take their defaults."""
    known = {
        name: message[name] for name in Instruction.__dataclass_fields__ if message.get(name) is not None
    }
    known.setdefault("overrides", {})
    instruction = Instruction(**known)
    if instruction.min_steps < 1 or instruction.max_steps < instruction.min_steps:
        raise ValueError(
            f"A block of {instruction.min_steps} to {instruction.max_steps} steps cannot be timed."
        )
    for name in ("give_up_s", "target_error"):
        limit = getattr(instruction, name)
        if limit is not None and not (isinstance(limit, (int, float)) and 0 < limit < math.inf):
            raise ValueError(f"{name} is {limit!r}; it must be a number above 0, or missing.")
    return instruction


def choose_timed_steps(instruction: Instruction, step_time_s: float, period: int) -> int:
    """Enough steps for the target time within the limits, rounded up to whole periods."""
    wanted = math.ceil(instruction.target_s / max(step_time_s, 1e-6))
    steps = min(max(wanted, instruction.min_steps), instruction.max_steps)
    return -(-steps // period) * period


@dataclass
class Block:
    """This rank's progress."""

    instruction: Instruction
    warmup_steps: int
    """Untimed steps: at least what was asked for, more where a lever needs them."""
    period: int = 1
    switch_s: float = 0.0
    stage: Stage = Stage.WARMING_UP
    timed_steps: int = 0
    warm: List[StepMarks] = field(default_factory=list)
    timed: List[StepMarks] = field(default_factory=list)
    profiled: List[StepMarks] = field(default_factory=list)
    exposed: Dict[int, List[float]] = field(default_factory=dict)
    """Exposed communication per DDP model and profiled step; the first reading of each is of an unprofiled step."""
    evidence: Optional[Dict[str, Any]] = None
    """What the levers could prove when the last timed step ended."""
    checkpoints: List[int] = field(default_factory=list)
    """Counts of timed steps after which the ranks still have to ask whether timing may stop."""
    held: int = 0
    """Checkpoints after which timing went on."""
    disturbed: bool = False
    """The next step follows a checkpoint."""
    given_up: bool = False
    calibration: Optional[CalibrationSteps] = None
    """What is watched in the steps after the timed ones."""

    def plan_timing(self, timed_steps: int) -> None:
        """All ranks agreed on that many steps."""
        order = self.instruction
        self.timed_steps = timed_steps
        self.checkpoints = plan_checkpoints(
            order.min_steps, timed_steps, self.period, order.give_up_s, order.target_error
        )

    def book_timed(self, step: StepMarks) -> None:
        """The step after a checkpoint began with an idle device: it is kept for its loss, and does not count."""
        if self.disturbed:
            step.flag = max(step.flag, INTERRUPTED)
            self.disturbed = False
        self.timed.append(step)

    @property
    def at_checkpoint(self) -> bool:
        """Periods that do not count because of a checkpoint are made up for."""
        return bool(self.checkpoints) and len(self.timed) - self.held * self.period == self.checkpoints[0]

    def judge(self, clock: Any) -> str:
        """What this rank's steps say of the checkpoint; the clock has settled."""
        order = self.instruction
        times = [clock.measure(step.start, step.end) for step in self.timed]
        periods = average_periods(times, [step.flag for step in self.timed], self.period)
        enough = len(periods) * self.period >= order.min_steps
        return judge_timing(periods, enough, order.give_up_s, order.target_error)

    def pass_checkpoint(self, verdict: str) -> None:
        """Takes note of what rank 0 found."""
        self.given_up = verdict == GIVEN_UP
        if verdict == GO_ON:
            self.checkpoints.pop(0)
            self.held += 1
            self.timed_steps += self.period
            self.disturbed = True

    def estimate_step_s(self, clock: Any) -> float:
        """Median over the second half of the warm-up: the first steps pay for the switch."""
        late = self.warm[len(self.warm) // 2 :] or self.warm
        return statistics.median(clock.measure(step.start, step.end) for step in late) if late else 0.0
