"""A gate before optimizer.step(): levers may hold an update back while the script goes on as if it had been made."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, List, Tuple

import torch

from ... import current
from ...guard import guarded


class StepGate:
    """Stands in the instances' own `step`, so that nothing of it is left once it is opened."""

    def __init__(self, may_step: Callable[[Any], bool]) -> None:
        self._may_step = guarded(may_step)
        self._gated: List[Tuple[Any, Any, Any]] = []

    def guard(self, optimizers: List[Any]) -> None:
        """From here on asks before every step of these optimizers, and of no others."""
        for optimizer, gate, instances_own in self._gated:
            # A scheduler made meanwhile has wrapped the gate: that stays, and the gate lets everything pass.
            if optimizer.__dict__.get("step") is gate:
                if instances_own is None:
                    del optimizer.step
                else:
                    optimizer.step = instances_own
        self._gated = [self._stand_before(optimizer) for optimizer in optimizers]

    def _stand_before(self, optimizer: Any) -> Tuple[Any, Any, Any]:
        instances_own = optimizer.__dict__.get("step")
        original = optimizer.step

        @functools.wraps(original)
        def step(this: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            if closure is None:
                if self._may_step(this) is not False:
                    return original(*args, **kwargs)
                return _pretend(this, None)
            # The closure holds the forward: whether this step is held back is known only after it.
            with torch.enable_grad():
                loss = closure()
            if self._may_step(this) is not False:
                return original(lambda: loss, *args, **kwargs)
            return _pretend(this, loss)

        # Schedulers look for a bound method's function.
        gate = types.MethodType(step, optimizer)
        optimizer.step = gate
        return optimizer, gate, instances_own


def _pretend(optimizer: Any, loss: Any) -> Any:
    """The runtime counts the script's steps by their hooks, also those that are held back."""
    runtime = current.current_runtime
    if runtime is not None:
        runtime.begin_optimizer_step(optimizer)
        runtime.end_optimizer_step(optimizer)
    return loss
