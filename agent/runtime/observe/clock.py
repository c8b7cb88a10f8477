"""Times and losses of steps, taken without waiting for a device: read on CPU, noted on the current stream on CUDA."""

from __future__ import annotations

import time
from typing import Any, Union

import torch


class CpuClock:
    """A mark is a float of seconds."""

    mark = staticmethod(time.perf_counter)
    keep_loss = staticmethod(torch.Tensor.item)
    """Scripts add to their loss or scale it in place afterwards."""

    def measure(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another."""
        return float(end - start)

    def note_turn(self) -> None:
        """Backward begins here."""

    def is_in_turn(self) -> bool:
        """Whether a thread that helps in backward works in the order of this clock's marks."""
        return False

    def settle(self) -> None:
        """Waits until every mark made so far can be measured: on CPU always."""


class CudaClock:
    """A mark is a CUDA event; read only after `settle`, at the end of a block."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Streams are looked up by the number of the device: torch takes 2 µs more to read it off a device.
        self._place = device if device.index is None else device.index
        self._turn: Any = None
        """The stream of the backward under way."""

    def note_turn(self) -> None:
        self._turn = torch.cuda.current_stream(self._place)

    def is_in_turn(self) -> bool:
        return bool(torch.cuda.current_stream(self._place) == self._turn)

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._place))
        return event

    def keep_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss.detach().clone()

    def measure(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1000.0

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)


Clock = Union[CpuClock, CudaClock]


def is_capturing() -> bool:
    """Whether the script records a CUDA graph now: until it is done no code may wait for the device."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def choose_clock(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()
