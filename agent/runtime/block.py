"""One block: an instruction of the agent and how far this rank has come with it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, List, Mapping, Optional

from .recorder import StepMarks


class Stage(Enum):
    """A block's stretches, in order."""

    WARMING_UP = "warming_up"
    SETTLING = "settling"
    """One untimed step after the ranks agreed on the number of timed ones, so that devices are busy again."""
    TIMING = "timing"
    PROFILING = "profiling"
    """Further steps in which DDP logs its own communication; they are not timed."""


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

    def estimate_step_s(self, clock: Any) -> float:
        """Median over the second half of the warm-up: the first steps pay for the switch."""
        late = self.warm[len(self.warm) // 2 :] or self.warm
        return statistics.median(clock.measure(step.start, step.end) for step in late) if late else 0.0
