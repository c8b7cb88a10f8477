"""Reducers of one DistributedDataParallel model that live side by side, so that changing its buckets costs nothing.

Each hooks the same gradient accumulators; one that was not prepared for a backward pass ignores its hooks. One that
was prepared for a pass that never came (a forward whose loss the script dropped) is made to forget it when it is left.
"""

from __future__ import annotations

from typing import Any, Optional

from ... import private_torch
from ...private_torch import BUCKET_CONFIG, FORGET_PASS, HAS_REBUILT

FIELDS = (
    "reducer",
    "logger",
    "bucket_bytes_cap",
    "bucket_bytes_cap_default",
    "bucket_bytes_cap_list",
    BUCKET_CONFIG.name,
    HAS_REBUILT.name,
)
"""What DDP itself keeps about its reducer; which of them exist depends on torch."""


class LiveReducer:
    """A model's reducer as it stands, to be put back later between any two steps."""

    def __init__(self, ddp: Any) -> None:
        """Call between steps: the model's next pass is another reducer's."""
        self._fields = {name: vars(ddp)[name] for name in FIELDS if name in vars(ddp)}
        FORGET_PASS.of(ddp.reducer)()

    def take_over(self, ddp: Any) -> None:
        """Call between steps, on every rank alike."""
        for name, value in self._fields.items():
            setattr(ddp, name, value)
        if ddp.find_unused_parameters:
            # Its hooks noted the parameters that were used while others reduced; that must not count for the next step.
            FORGET_PASS.of(ddp.reducer)()


def explain_no_live_reducers(ddp: Any) -> Optional[str]:
    """Why this model can have only one reducer at a time, or None."""
    if ddp.static_graph:
        return "With static_graph=True a second reducer lets the ranks' parameters drift apart."
    return private_torch.explain_missing(ddp.reducer, (FORGET_PASS,))
