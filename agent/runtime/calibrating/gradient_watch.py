"""Watches gradients as backward makes them: when each is ready, and how large it is before and after averaging.

Hooks run after a gradient was accumulated and before DDP takes it; they read, and change nothing. In one step either
the times or the norms are taken: a norm costs time.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Optional

import torch

from ..guard import guarded
from ..levers.reduction.reducer import has_own_hook
from ..observe.clock import Clock
from ..observe.reduced import list_reduced

_REGISTER = "register_post_accumulate_grad_hook"
"""Torch has it from 2.1 on."""


class _Watch(ABC):
    """Hooks on every gradient that a DDP model reduces."""

    def __init__(self, ddp: Any) -> None:
        self._ddp = ddp
        self._parameters = list_reduced(ddp)
        self._handles: List[Any] = []
        self._is_reduced = True
        self._in_backward = False
        self._is_nested = False
        """Whether forwards run inside a backward, as cached losses do: then it is not one pass."""

    def install(self) -> None:
        if hasattr(torch.Tensor, _REGISTER):
            self._handles = [
                getattr(parameter, _REGISTER)(self._make_hook(index))
                for index, parameter in enumerate(self._parameters)
                if parameter.requires_grad
            ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def note_forward(self, ddp: Any) -> None:
        """A training forward: whether the backward after it reduces is decided here."""
        if ddp is self._ddp:
            self._is_reduced = bool(ddp.require_backward_grad_sync)
            self._is_nested = self._is_nested or self._in_backward

    def begin_backward(self) -> None:
        self._in_backward = True

    def end_backward(self) -> None:
        self._in_backward = False

    def _make_hook(self, index: int) -> Callable[[torch.Tensor], None]:
        @guarded
        def hook(parameter: torch.Tensor) -> None:
            self._note(index, parameter)

        return hook

    @abstractmethod
    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        """What one gradient, just accumulated, is worth noting for."""


class GradientTimes(_Watch):
    """Marks of the clock, measured when the block is over."""

    def __init__(self, ddp: Any, clock: Clock) -> None:
        super().__init__(ddp)
        self._clock = clock
        self._start: Any = None
        self._marks: Dict[int, Any] = {}
        self._reduced: List[Any] = []
        self._alone: List[Any] = []
        """Passes that exchanged nothing (no_sync): communication cannot have slowed them down."""

    def begin_backward(self) -> None:
        super().begin_backward()
        self._start, self._marks = self._clock.mark(), {}

    def end_backward(self) -> None:
        super().end_backward()
        if self._marks and self._start is not None:  # else this was put in place in the middle of it
            (self._reduced if self._is_reduced else self._alone).append((self._start, self._marks))
        self._start, self._marks = None, {}

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        self._marks[index] = self._clock.mark()

    def read(self) -> List[List[Optional[float]]]:
        """Bytes and median seconds since the start of backward of each gradient; the clock has settled."""
        passes = [] if self._is_nested else self._alone or self._reduced
        table: List[List[Optional[float]]] = []
        for index, parameter in enumerate(self._parameters):
            times = [self._clock.measure(start, marks[index]) for start, marks in passes if index in marks]
            size = parameter.numel() * parameter.element_size()
            table.append([size, statistics.median(times) if times else None])
        return table


class GradientNorms(_Watch):
    """Squared norms of this rank's own gradient and of the averaged one, on the device until they are read."""

    def __init__(self, ddp: Any) -> None:
        super().__init__(ddp)
        self._own: Dict[int, torch.Tensor] = {}
        self._passes: List[Any] = []
        """Of the step in progress: those that reduced."""
        self._steps: List[Any] = []
        self._is_usable = True

    @staticmethod
    def can_watch(ddp: Any) -> bool:
        """A script's own communication hook may send anything; of sparse gradients, of those on several devices and of
        those cut up between ranks (DTensor) this rank has no norm at hand."""
        parameters = list_reduced(ddp)
        sparse = any(getattr(module, "sparse", False) for module in ddp.modules())
        cut_up = any(hasattr(parameter, "to_local") for parameter in parameters)
        devices = {parameter.device for parameter in parameters}
        return not (sparse or cut_up or has_own_hook(ddp)) and len(devices) == 1

    def begin_backward(self) -> None:
        super().begin_backward()
        self._own = {}

    def end_backward(self) -> None:
        """DDP has averaged when backward returns. Gradients of earlier passes without reduction are in these."""
        super().end_backward()
        with torch.no_grad():
            if self._is_reduced and self._own:
                averaged = [
                    _norm(parameter.grad) for parameter in self._parameters if parameter.grad is not None
                ]
                self._passes.append((_add_squares(list(self._own.values())), _add_squares(averaged)))
            self._own = {}

    def end_step(self, samples: int) -> None:
        """A step that reduces more than once mixes averaged gradients with its own: it tells nothing."""
        if len(self._passes) == 1:
            self._steps.append((*self._passes[0], samples))
        else:
            self._is_usable = False
        self._passes = []

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        with torch.no_grad():
            gradient = _parameter.grad
            if gradient is None or gradient.is_sparse:
                self._is_usable = False
            else:
                self._own[index] = _norm(gradient)

    def read(self) -> List[List[float]]:
        """One entry a step: own and averaged squared norm, samples; empty when some step told nothing."""
        if not self._is_usable or self._is_nested:
            return []
        return [[float(own), float(averaged), float(samples)] for own, averaged, samples in self._steps]


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    narrow = gradient.element_size() < 4
    return torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32 if narrow else None)


def _add_squares(norms: List[torch.Tensor]) -> torch.Tensor:
    return torch.stack([norm.double() for norm in norms]).square().sum()
