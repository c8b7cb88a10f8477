"""The steps of a calibrating block after the timed ones: gradients are watched in them, links measured after the last.

Training goes on as ever in these steps: what the script computes keeps every bit.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ..levers.events import StepListener
from ..observe.clock import Clock
from ..observe.recorder import StepMarks
from ..private_torch import PYTHON_REDUCER
from .calibration_results import RankCalibration
from .ceiling import Ceiling
from .gradient_watch import GradientNorms, GradientTimes
from .link_sweep import LinkSweep

SETTLING_STEPS = 1
TIMES_STEPS = 4
NORMS_STEPS = 8
"""A step says little of the gradient's noise: its squared norms are averaged over these."""


class CalibrationSteps(StepListener):
    """One rank's part. What cannot be measured in this job stays empty."""

    def __init__(
        self, replicas: List[Any], replaces_reduction: bool, clock: Clock, ceiling: Optional[Ceiling] = None
    ) -> None:
        """`ceiling` has begun to count. With several DDP models backward is not one pass, and compiled code that
        reduces by itself (python_reducer) would take the hooks into it: there gradients are not watched."""
        self._clock, self._ceiling = clock, ceiling
        self._step = 0
        self._times = self._norms = None
        if len(replicas) == 1 and not PYTHON_REDUCER.find(replicas[0], False):
            self._times = GradientTimes(replicas[0], clock)
            if not replaces_reduction and GradientNorms.can_watch(replicas[0]):
                self._norms = GradientNorms(replicas[0])
        self._now: Any = None
        self._links: List[Dict[str, Any]] = []
        self.is_complete = False

    def after_forward(self, ddp: Any) -> None:
        if self._now is not None:
            self._now.note_forward(ddp)

    def before_backward(self) -> float:
        if self._now is not None:
            self._now.begin_backward()
        return 1.0

    def after_backward(self) -> None:
        if self._now is not None:
            self._now.end_backward()

    def end_step(self, step: StepMarks) -> bool:
        """At the boundary after each step; whether it was the last one."""
        if self._step == 0 and self._ceiling is not None:
            self._ceiling.stop()
        if self._now is not None and self._now is self._norms:
            self._norms.end_step(step.samples)
        self._step += 1
        if self._step == SETTLING_STEPS:
            self._watch(self._times)
        elif self._step == SETTLING_STEPS + TIMES_STEPS:
            self._watch(self._norms)
        is_last = self._step >= SETTLING_STEPS + TIMES_STEPS + NORMS_STEPS
        if is_last or self._now is None:
            self._watch(None)
            return True
        return False

    def measure_rates(self, sweep: Optional[LinkSweep], gradient_bytes: int) -> None:
        """After the last step, on every rank: of links, where there are any, and of the device."""
        if sweep is not None:
            self._links = sweep.measure(gradient_bytes)
        if self._ceiling is not None:
            self._ceiling.measure_rate()
        self.is_complete = True

    def read(self) -> RankCalibration:
        """The clock has settled."""
        return RankCalibration(
            gradients=self._times.read() if self._times is not None else [],
            links=self._links,
            noise=self._norms.read() if self._norms is not None else [],
            ceiling=self._ceiling.read() if self._ceiling is not None else None,
        )

    def _watch(self, watch: Any) -> None:
        if self._now is not None:
            self._now.remove()
        self._now = watch
        if watch is not None:
            watch.install()
