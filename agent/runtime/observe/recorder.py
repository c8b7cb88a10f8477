"""Records where each step's time goes, as marks of the clock that are measured only when a race is looked at."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch

from .clock import Clock


class StepMarks:
    """One step of this rank: from its first training forward to the next step's."""

    __slots__ = ("backward", "data_wait_s", "end", "flag", "forward", "loss", "optimizer", "samples", "start")

    def __init__(self, start: Any) -> None:
        self.start = start
        self.end: Any = None
        self.forward: List[Tuple[Any, Any]] = []
        self.backward: List[Tuple[Any, Any]] = []
        self.optimizer: List[Tuple[Any, Any]] = []
        self.data_wait_s = 0.0
        self.samples = 0
        self.flag = 0
        self.loss: Any = None
        """A number, or a tensor of one on a device."""


PLAIN, NEW_EPOCH, INTERRUPTED = 0, 1, 2
"""A step's flag: nothing special; a loader was started anew; an evaluation or a save happened inside it."""


class Recorder:
    """Open marks of the step in progress. Phases are marked only while `recording`."""

    def __init__(self) -> None:
        self.clock: Any = None
        self.recording = False
        self.keeps_loss = False
        """Whether `loss` is kept, also while not recording."""
        self.loss: Any = None
        """The last loss: a number, or a tensor of one on a device."""
        self._step: Optional[StepMarks] = None
        self._forward_start: Any = None
        self._backward_start: Any = None
        self._backward_depth = 0
        self._optimizer_start: Any = None
        self._unscaled: Optional[torch.Tensor] = None
        self.ahead = 0
        """Boundaries that `pass_boundary` alone passes."""
        self._kept: List[StepMarks] = []

    def begin_step(self, mark: Any) -> None:
        self._step = StepMarks(mark)

    def close_step(self, mark: Any, samples: int) -> Optional[StepMarks]:
        """The step that ends here, or None if its beginning was not seen."""
        step, self._step = self._step, None
        if step is not None:
            step.end, step.samples = mark, samples
        return step

    def keep_steps(self, count: int, kept: List[StepMarks]) -> None:
        """The next `count` steps are only added to `kept`: nobody decides anything at their ends."""
        self.ahead, self._kept = count, kept

    def pass_boundary(self, samples: int) -> None:
        """Between two of these steps; the first forward of the one that begins is marked, too."""
        mark, step = self.clock.mark(), self._step
        if step is not None:
            step.end, step.samples = mark, samples
            self._kept.append(step)
        self._step = StepMarks(mark)
        self._forward_start = mark
        self.ahead -= 1

    def stop(self) -> None:
        """The script is left to itself: nothing is marked or kept any more."""
        self.recording = self.keeps_loss = False
        self.ahead = 0

    def raise_flag(self, flag: int) -> None:
        if self._step is not None and self._step.flag < flag:
            self._step.flag = flag

    def add_data_wait(self, seconds: float) -> None:
        if self._step is not None:
            self._step.data_wait_s += seconds

    def begin_forward(self) -> None:
        if self.recording:
            self._forward_start = self.clock.mark()

    def end_forward(self) -> None:
        if self.recording and self._step is not None and self._forward_start is not None:
            self._step.forward.append((self._forward_start, self.clock.mark()))
            self._forward_start = None

    def note_unscaled_loss(self, outputs: Any) -> None:
        if (self.recording or self.keeps_loss) and isinstance(outputs, torch.Tensor):
            self._unscaled = outputs

    def begin_backward(self, roots: Any) -> bool:
        """Whether this is the outermost backward: checkpointing runs further ones inside."""
        if self._backward_depth:
            return False
        self._backward_depth = 1
        if (self.recording or self.keeps_loss) and self._step is not None:
            if self._unscaled is not None:
                roots, self._unscaled = self._unscaled, None
            # The usual case without the search.
            loss = roots if isinstance(roots, torch.Tensor) and roots.dim() == 0 else find_loss(roots)
            kept = None if loss is None else self.clock.keep_loss(loss)
            if self.keeps_loss:
                self.loss = kept
            if self.recording:
                self._step.loss = kept
                self._backward_start = self.clock.mark()
        return True

    @property
    def is_in_backward(self) -> bool:
        return self._backward_depth > 0

    def end_backward(self) -> None:
        self._backward_depth = 0
        if self.recording and self._step is not None and self._backward_start is not None:
            end = self.clock.mark()
            self._step.backward.append((self._backward_start, end))
            self._backward_start = None
            if self._optimizer_start is not None:
                # Forward and backward ran as a closure inside optimizer.step(): its own work begins here.
                self._optimizer_start = end

    def begin_optimizer(self) -> None:
        if self.recording:
            self._optimizer_start = self.clock.mark()

    def end_optimizer(self) -> None:
        if self.recording and self._step is not None and self._optimizer_start is not None:
            self._step.optimizer.append((self._optimizer_start, self.clock.mark()))
        self._optimizer_start = None

    def extend_backward(self) -> None:
        """The last backward ends only now: an engine went on with what it had left."""
        if self.recording and self._step is not None and self._step.backward:
            self._step.backward[-1] = (self._step.backward[-1][0], self.clock.mark())

    def surround_optimizer(self, step: Callable[[], Any]) -> Any:
        """What `step` returns; the optimizer's step inside it lasts from its beginning to its end."""
        start, known = (self.clock.mark(), self._step) if self.recording else (None, None)
        before = len(known.optimizer) if known is not None else 0
        returned = step()
        if known is not None and len(known.optimizer) > before:
            known.optimizer[before:] = [(start, self.clock.mark())]
        return returned


def find_loss(roots: Any) -> Optional[torch.Tensor]:
    """The scalar that backward starts from; None when there is no single number."""
    root = (
        roots if isinstance(roots, torch.Tensor) else next(iter(roots), None) if roots is not None else None
    )
    if isinstance(root, torch.Tensor) and root.numel() == 1:
        return root
    return None


def measure_steps(steps: List[StepMarks], clock: Clock) -> Dict[str, List[Any]]:
    """Seconds, samples, flags and losses step by step; call after the clock has settled."""
    return {
        "step_time_s": [clock.measure(step.start, step.end) for step in steps],
        "forward_s": [_sum(step.forward, clock) for step in steps],
        "backward_s": [_sum(step.backward, clock) for step in steps],
        "optimizer_s": [_sum(step.optimizer, clock) for step in steps],
        "data_wait_s": [step.data_wait_s for step in steps],
        "samples": [step.samples for step in steps],
        "flags": [step.flag for step in steps],
        "losses": read_losses([step.loss for step in steps]),
    }


def read_losses(losses: List[Any]) -> List[Union[float, str, None]]:
    """Numbers, moved from the device in one transfer; a loss that is not finite becomes "nan", a missing one None."""
    tensors = [loss.reshape(()).float() for loss in losses if isinstance(loss, torch.Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else ())
    read: List[Any] = [next(numbers) if isinstance(loss, torch.Tensor) else loss for loss in losses]
    return ["nan" if isinstance(number, float) and not math.isfinite(number) else number for number in read]


def _sum(pairs: List[Tuple[Any, Any]], clock: Clock) -> float:
    return sum(clock.measure(start, end) for start, end in pairs)
