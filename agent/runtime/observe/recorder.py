"""Records where each step's time goes, as marks of the clock that are measured only when a race is looked at."""

from __future__ import annotations

import math
from threading import get_ident
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import torch

from .clock import Clock
from .collective_calls import CollectiveCalls

MOST_CALLS = 12
"""Collectives of a step that are told one by one."""
_DIGITS = 8


OWN, DATA, FORWARD, BACKWARD, OPTIMIZER, REDUCTION, COLLECTIVE, GARBAGE, BUFFERS, COMPILING = range(10)
"""What a rank does at a moment. OWN is the script's code outside of all others; REDUCTION is what a strategy of ours
exchanges in the place of DDP's reduction, and what DDP's forward does for it; BUFFERS is rank 0's broadcast of the
model's buffers there; COLLECTIVE any other call that waits for ranks."""
PHASES = (
    "own_code_s",
    "data_wait_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "reduction_s",
    "collectives_s",
    "garbage_s",
    "buffers_s",
    "compiling_s",
)
"""Their names in what ranks tell each other."""


class StepMarks:
    """One step of this rank: from its first training forward to the next step's."""

    __slots__ = (
        "data_wait_s", "end", "exposed_s", "flag", "loss", "marks", "phases", "samples", "saves_beside", "start",
    )  # fmt: skip

    def __init__(self, start: Any, phase: int = OWN, saves_beside: bool = False) -> None:
        self.start = start
        self.end: Any = None
        self.marks: List[Any] = [start]
        """Where one phase ends and the next begins."""
        self.phases: List[int] = [phase]
        """What begins at each."""
        self.exposed_s: Optional[float] = None
        """Of its backward, communication that no computing hid; None where DDP was not asked."""
        self.data_wait_s = 0.0
        """The host's time, also while not recording."""
        self.samples = 0.0
        self.flag = 0
        self.saves_beside = saves_beside
        """Whether another thread of the rank saved meanwhile."""
        self.loss: Any = None
        """A number, or a tensor of one on a device."""


PLAIN, NEW_EPOCH, INTERRUPTED = 0, 1, 2
"""A step's flag: nothing special; a loader was started anew; an evaluation or a save happened inside it."""


class Recorder:
    """Marks of the step in progress. A moment belongs to the phase that began last (a collective inside a backward
    inside a forward), so that phases never overlap. They are marked only while `recording`."""

    def __init__(self, is_alone: bool = False) -> None:
        """`is_alone`: there is one rank, whose calls of torch.distributed bring nothing anywhere."""
        self._is_alone = is_alone
        self.clock: Any = None
        self.recording = False
        self.keeps_loss = False
        """Whether `loss` is kept, also while not recording."""
        self.loss: Any = None
        """The last loss: a number, or a tensor of one on a device."""
        self.exchanges = 0
        """Calls of torch.distributed that brought values from rank to rank, DDP's own reductions left out."""
        self.calls: Optional[CollectiveCalls] = None
        """Where a diagnosis is told which lines call."""
        self.asks_ddp = False
        """Whether DDP times every iteration and is asked for it."""
        self.has_nested = False
        """Whether a backward ran inside a model's forward: DDP times the last one of a forward only."""
        self._reduced: Dict[int, Tuple[Optional[StepMarks], Any]] = {}
        """Of each DDP model the step of its last forward, and when the last reduction that DDP has timed ended."""
        self._step: Optional[StepMarks] = None
        self._stack: List[int] = [OWN]
        self._stepping: List[Tuple[Any, int]] = []
        """Optimizers whose step is under way, with their places in the stack."""
        self._thread = 0
        self._savers: Set[int] = set()
        """Threads that save now, other than the one that trains."""
        self._backward_depth = 0
        self._unscaled: Optional[torch.Tensor] = None
        self.ahead = 0
        """Boundaries that `pass_boundary` alone passes."""
        self.gives_way = False
        """Whether another model or optimizer ends that."""
        self._kept: List[StepMarks] = []

    def start(self) -> None:
        """From the step that begins at this boundary on, phases are marked."""
        self.recording = True
        self._stack = [OWN, BACKWARD] if self._backward_depth else [OWN]
        self._stepping, self._reduced, self.has_nested = [], {}, False

    def stop(self) -> None:
        """The script is left to itself: nothing is marked or kept any more."""
        self.recording = self.keeps_loss = self.asks_ddp = False
        self.ahead = 0

    def begin_step(self, mark: Any) -> None:
        if not self._backward_depth:  # its hooks may run in another thread
            self._thread = get_ident()
        self._settle_stack()
        self._step = StepMarks(mark, self._stack[-1], bool(self._savers))

    def close_step(self, mark: Any, samples: float) -> Optional[StepMarks]:
        """The step that ends here, or None if its beginning was not seen."""
        step, self._step = self._step, None
        if step is not None:
            step.end, step.samples = mark, samples
        return step

    def keep_steps(self, count: int, kept: List[StepMarks], gives_way: bool = False) -> None:
        """The next `count` steps are only added to `kept`: the runtime decides nothing at their ends.

        `gives_way`: unless another model or optimizer comes.
        """
        self.ahead, self._kept, self.gives_way = count, kept, gives_way

    def pass_boundary(self, samples: float, in_forward: bool = True) -> None:
        """Between two of these steps; the first forward of the one that begins is marked, too, where it begins here."""
        mark, step = self.clock.mark(), self._step
        if step is not None:
            step.end, step.samples = mark, samples
            self._kept.append(step)
        self._settle_stack()
        if in_forward:
            self._stack.append(FORWARD)
        self._step = StepMarks(mark, self._stack[-1], bool(self._savers))
        self.ahead -= 1

    def raise_flag(self, flag: int) -> None:
        if self._step is not None and self._step.flag < flag:
            self._step.flag = flag

    def begin_save(self) -> None:
        """The script writes a checkpoint: inside the step, or beside it in a thread of its own."""
        if get_ident() == self._thread:
            self.raise_flag(INTERRUPTED)
        elif (step := self._step) is not None:
            self._savers.add(get_ident())
            step.saves_beside = True

    def end_save(self) -> None:
        self._savers.discard(get_ident())

    def add_data_wait(self, seconds: float) -> None:
        if self._step is not None:
            self._step.data_wait_s += seconds

    @property
    def phase(self) -> int:
        """What is done at this moment, while recording."""
        return self._stack[-1]

    def begin(self, phase: int) -> None:
        """Whatever is done from here on is that, until `end`."""
        if self.recording:
            self._stack.append(phase)
            step = self._step
            if step is not None:
                step.marks.append(self.clock.mark())
                step.phases.append(phase)

    def end(self, phase: int) -> None:
        """What was done before it goes on."""
        stack, step = self._stack, self._step
        if self.recording and phase in stack[1:]:
            while stack.pop() != phase:
                pass
            if step is not None:
                step.marks.append(self.clock.mark())
                step.phases.append(stack[-1])

    def begin_collective(self, phase: int, exchanges: bool = False, name: str = "", given: Any = ()) -> bool:
        """Whether a call that waits for other ranks counts by itself: not inside another, nor beside the training.
        `name` is the called method's, `given` its arguments."""
        if exchanges:
            self.exchanges += 1
        if not self.recording or self._is_alone or self._stack[-1] in (REDUCTION, COLLECTIVE, BUFFERS):
            return False
        # Backward runs on threads of its own on CUDA. What runs beside it is on another stream.
        is_ours = get_ident() == self._thread or (self._backward_depth > 0 and self.clock.is_in_turn())
        if is_ours:
            in_model = self._stack[-1] in (FORWARD, BACKWARD)
            self.begin(phase)
            if self.calls is not None and phase == COLLECTIVE and self._step is not None:
                self.calls.note(self._step, name, given, in_model)
        return is_ours

    def note_interlude(self, phase: int, begins: bool) -> None:
        """Python collects all of its garbage, or torch compiles, in the midst of anything else."""
        # What compiling leaves behind is collected in its own time.
        if get_ident() == self._thread and (phase == COMPILING or self._stack[-1] != COMPILING):
            (self.begin if begins else self.end)(phase)

    def note_reduction(self, ddp: Any, logged: Dict[str, int], exposed_s: float) -> None:
        """After a training forward of this model, which made DDP log its last reduction."""
        identity, ended = id(ddp), logged.get("backward_comm_time_end")
        step, before = self._reduced.get(identity, (None, None))
        if step is not None:
            step.exposed_s = (step.exposed_s or 0.0) + (
                exposed_s if ended is None or ended != before else 0.0
            )
        self._reduced[identity] = self._step, ended

    def forget_reductions(self) -> None:
        """Another strategy: what DDP logs next is of earlier steps."""
        self._reduced = {}

    def note_unscaled_loss(self, outputs: Any) -> None:
        if (self.recording or self.keeps_loss) and isinstance(outputs, torch.Tensor):
            self._unscaled = outputs

    def begin_backward(self, roots: Any) -> bool:
        """Whether this is the outermost backward: checkpointing runs further ones inside."""
        if self._backward_depth:
            return False
        self._backward_depth, self._thread = 1, get_ident()
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
                if FORWARD in self._stack:
                    self.has_nested = True
                self.clock.note_turn()
                self.begin(BACKWARD)
        return True

    @property
    def is_in_backward(self) -> bool:
        return self._backward_depth > 0

    def end_backward(self) -> None:
        self._backward_depth = 0
        self.end(BACKWARD)

    def begin_optimizer(self, optimizer: Any) -> None:
        if self.recording:
            if self._stepping:
                self._forget_optimizer(optimizer)  # an earlier step of it failed
            self._stepping.append((optimizer, len(self._stack)))
            self.begin(OPTIMIZER)

    def end_optimizer(self, optimizer: Any) -> None:
        if self.recording and self._forget_optimizer(optimizer):
            self._mark(self._stack[-1])

    def _forget_optimizer(self, optimizer: Any) -> bool:
        for place, (known, depth) in enumerate(self._stepping):
            if known is optimizer:
                del self._stepping[place:]
                del self._stack[depth:]
                return True
        return False

    def _settle_stack(self) -> None:
        """Only an optimizer and a backward can run across a boundary: a closure, or a hook of that backward, runs the
        step's first forward. What else is there has failed and left its phase behind."""
        if len(self._stack) > 1:
            stepping = {place: optimizer for optimizer, place in self._stepping}
            phases, self._stack, self._stepping = self._stack, [OWN], []
            for place, phase in enumerate(phases):
                if place in stepping:
                    self._stepping.append((stepping[place], len(self._stack)))
                    self._stack.append(OPTIMIZER)
                elif phase == BACKWARD and self._backward_depth:
                    self._stack.append(BACKWARD)

    def _mark(self, phase: int) -> None:
        step = self._step
        if step is not None:
            step.marks.append(self.clock.mark())
            step.phases.append(phase)


def find_loss(roots: Any) -> Optional[torch.Tensor]:
    """The scalar that backward starts from; None when there is no single number."""
    root = next(iter(roots), None) if isinstance(roots, (list, tuple)) else roots
    if isinstance(root, torch.Tensor) and root.numel() == 1:
        return root
    return None


def split_step(step: StepMarks, clock: Clock) -> Tuple[List[float], List[float]]:
    """Seconds by phase, which add up to the step, and of each collective; of many, the last ones are told as one."""
    parts, calls = [0.0] * len(PHASES), []
    for phase, start, end in zip(step.phases, step.marks, [*step.marks[1:], step.end]):
        seconds = clock.measure(start, end)
        parts[phase] += seconds
        if phase == COLLECTIVE:
            calls.append(seconds)
    whole = [*calls[: MOST_CALLS - 1], sum(calls[MOST_CALLS - 1 :])] if len(calls) > MOST_CALLS else calls
    return [round(seconds, _DIGITS) for seconds in parts], [round(seconds, _DIGITS) for seconds in whole]


def read_losses(losses: List[Any]) -> List[Union[float, str, None]]:
    """Numbers, moved from the device in one transfer; a loss that is not finite becomes "nan", a missing one None."""
    tensors = [loss.reshape(()).float() for loss in losses if isinstance(loss, torch.Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else ())
    read: List[Any] = [next(numbers) if isinstance(loss, torch.Tensor) else loss for loss in losses]
    return ["nan" if isinstance(number, float) and not math.isfinite(number) else number for number in read]


def multiply_loss(
    roots: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], factor: float
) -> Tuple[Any, Tuple[Any, ...], Dict[str, Any]]:
    """Arguments for torch.autograd.backward whose gradients come out multiplied by `factor`.

    The factor goes into the initial gradients (`grad_tensors`), so that the script reads its own number in the loss. A
    root that backward would refuse is left as it is, for torch's own error.
    """
    is_one = isinstance(roots, (torch.Tensor, getattr(torch.autograd.graph, "GradientEdge", ())))
    roots = (roots,) if is_one else tuple(roots)
    given = args[0] if args else kwargs.get("grad_tensors")
    if given is None:
        given = (None,) * len(roots)
    elif isinstance(given, torch.Tensor):
        given = (given,)
    initial = tuple(_multiply(root, gradient, factor) for root, gradient in zip(roots, given))
    if args:
        return roots, (initial, *args[1:]), kwargs
    return roots, args, {**kwargs, "grad_tensors": initial}


def _multiply(root: Any, gradient: Any, factor: float) -> Any:
    if gradient is not None:
        return gradient * factor
    if isinstance(root, torch.Tensor) and root.numel() == 1:
        return torch.full_like(root, factor)
    return None
