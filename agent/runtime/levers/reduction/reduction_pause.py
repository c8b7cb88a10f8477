"""Training forwards whose backward exchanges no gradients."""

from __future__ import annotations

from typing import Any, List


class ReductionPause:
    """DDP decides at the forward whether the backward after it reduces; between forwards its flag is the script's."""

    def __init__(self) -> None:
        self._paused: List[Any] = []
        self.count = 0
        """Reductions skipped."""

    def begin(self, ddp: Any) -> None:
        """Skips the reduction after this forward, unless the script itself skips it already (no_sync)."""
        if ddp.require_backward_grad_sync:
            ddp.require_backward_grad_sync = False
            self._paused.append(ddp)
            self.count += 1

    def end(self) -> None:
        for ddp in self._paused:
            ddp.require_backward_grad_sync = True
        self._paused.clear()
