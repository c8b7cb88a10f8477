"""What a script computes again in its backward passes (torch.utils.checkpoint), and where that is kept instead."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, List, Optional

import torch

from ..guard import guarded
from ..private_torch import VERSION
from .clock import Clock
from .host_reads import OWN, TORCH, find_site

SWITCH = "gradient_checkpointing"
"""The attribute that `gradient_checkpointing_enable()` sets in a model or its layers."""


class Ours:
    """A function that the runtime itself has computed again, which is none of the script's."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self, *_: Any) -> Any:
        return self._function()


class Recomputation:
    """Of this rank, as the patches of torch.utils.checkpoint tell it. Backward passes may run in a thread of torch's;
    there is one for each device."""

    def __init__(self) -> None:
        self.keeps = False
        """Whether activations are kept, so that nothing is computed again."""
        self.kept = self.repeated = 0
        """Checkpointed calls that kept theirs, and those that were computed again, since `begin_counting`."""
        self.reasons: List[str] = []
        """Why what was watched must be computed again: what else it does, beside computing activations."""
        self.is_reentrant = False
        """Whether the older way was seen among what was watched: gradients come from passes of their own."""
        self.kept_bytes = 0
        """What keeping takes more in a step, all but the largest call's, for which there is room today, by what the
        allocator gave to those that were watched; 0 on CPUs, where nothing tells."""
        self._watch: Optional[_Watch] = None
        self._seen: Optional[_Watch] = None
        """What was watched."""
        self._is_repeating = False

    def begin_counting(self) -> None:
        """Counts start again."""
        self.kept = self.repeated = 0

    def checkpoint(
        self, function: Callable[..., Any], preserves: bool, is_reentrant: bool
    ) -> Optional[Callable[..., Any]]:
        """What torch is to call again in the backward pass; None where all that it would compute is to be kept."""
        if type(function) is Ours:
            return function
        if self.keeps:
            self.kept += 1
            return None
        if self._watch is not None:
            self._watch.note_call()
            self.is_reentrant = self.is_reentrant or is_reentrant

        def call(*args: Any, **kwargs: Any) -> Any:
            # The older way calls it in the forward too, where no gradient is recorded; one inside another counts once.
            if self._is_repeating or not torch.is_grad_enabled():
                return function(*args, **kwargs)
            return self._repeat(function, preserves, args, kwargs)

        return call

    def _repeat(self, function: Callable[..., Any], preserves: bool, args: Any, kwargs: Any) -> Any:
        self._is_repeating, watch = True, self._watch
        self.repeated += 1
        if watch is not None:
            watch.begin(preserves)
        try:
            return function(*args, **kwargs)
        finally:
            self._is_repeating = False
            if watch is not None:
                watch.end(preserves)

    def start(self, clock: Clock, device: torch.device, buffers: List[Any]) -> None:
        """Time what is computed again from here on, and look what else it changes; `buffers` are the models'."""
        self._watch = _Watch(clock, device, buffers)
        self.begin_counting()

    def stop(self, steps: int) -> None:
        """Watch no more, after so many steps."""
        self._watch, watch = None, self._watch
        if watch is not None:
            self._seen, self.reasons = watch, watch.reasons
            self.kept_bytes = max(0, sum(watch.taken) // steps - max(watch.taken, default=0))

    @property
    def was_seen(self) -> bool:
        """Whether anything was computed again while it was watched."""
        return self._seen is not None and bool(self._seen.marks)

    def describe(self, steps: int) -> Dict[str, Any]:
        """Of one of the `steps` steps that were watched, once the clock has settled; plain JSON."""
        watch = self._seen
        if watch is None or not watch.marks:
            return {}
        return {
            "per_step": len(watch.marks) / steps,
            "seconds": sum(watch.clock.measure(*pair) for pair in watch.marks) / steps,
            "site": watch.site,
            "by": watch.by,
            "kept_bytes": self.kept_bytes,
        }


class _Watch:
    """Of some steps."""

    def __init__(self, clock: Clock, device: torch.device, buffers: List[Any]) -> None:
        self.clock, self._device = clock, device
        self._buffers = [buffer for buffer in buffers if not buffer.is_inference()]
        self.marks: List[List[Any]] = []
        """Where each one begins and ends."""
        self.taken: List[int] = []
        """Bytes that it left allocated, on GPUs."""
        self.reasons: List[str] = []
        self.site = ""
        """`train.py:41`: where the first one is called."""
        self.by = ""
        """What has it computed again there: `find_switch`."""
        self._before: List[Any] = []

    @guarded
    def note_call(self) -> None:
        self.site, self.by = self.site or find_site(), self.by or find_switch()

    @guarded
    def begin(self, preserves: bool) -> None:
        self._before = [self._look(), [] if preserves else _read_random_states(), self._count_allocated()]
        self.marks.append([self.clock.mark()])

    @guarded
    def end(self, preserves: bool) -> None:
        self.marks[-1].append(self.clock.mark())
        buffers, states, allocated = self._before
        self.taken.append(max(0, self._count_allocated() - allocated))
        if buffers != self._look():
            self._add("it changes buffers of the model each time (running statistics)")
        if not preserves and not all(map(torch.equal, states, _read_random_states())):
            self._add("it draws random numbers of its own each time (preserve_rng_state=False)")

    def _add(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def _look(self) -> List[int]:
        return [VERSION.of(buffer) for buffer in self._buffers]

    def _count_allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._device)) if self._device.type == "cuda" else 0


def find_switch() -> str:
    """What has the function computed again that is being checkpointed: `checkpoint_wrapper`, a function of
    torch.utils.checkpoint, or `gradient_checkpointing`, by which a module of transformers' kind is switched."""
    frame, names = sys._getframe(1), set()
    while frame.f_back is not None and frame.f_code.co_filename.startswith((OWN, TORCH)):
        file = os.path.basename(frame.f_code.co_filename)
        names.add("checkpoint_wrapper" if file == "checkpoint_wrapper.py" else frame.f_code.co_name)
        frame = frame.f_back
    if getattr(frame.f_locals.get("self"), SWITCH, False) is True:
        return SWITCH
    return next(
        (name for name in ("checkpoint_wrapper", "checkpoint_sequential") if name in names), "checkpoint"
    )


def _read_random_states() -> List[torch.Tensor]:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_devices]
