"""Reducers of one DistributedDataParallel model that live side by side, so that changing its buckets costs nothing.

Each hooks the same gradient accumulators; one that was not prepared for a backward pass ignores its hooks.
"""

from __future__ import annotations

from typing import Any, Optional

from ...private_torch import BUCKET_CONFIG, FORGET_USED, HAS_REBUILT

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
        self._fields = {name: vars(ddp)[name] for name in FIELDS if name in vars(ddp)}

    def take_over(self, ddp: Any) -> None:
        """Call between steps, on every rank alike."""
        for name, value in self._fields.items():
            setattr(ddp, name, value)
        if ddp.find_unused_parameters:
            # Its hooks noted the parameters that were used while others reduced; that must not count for the next step.
            FORGET_USED.of(ddp.reducer)()


def explain_no_live_reducers(ddp: Any) -> Optional[str]:
    """Why this model can have only one reducer at a time, or None."""
    if ddp.static_graph:
        return "With static_graph=True a second reducer lets the ranks' parameters drift apart."
    if ddp.find_unused_parameters and not FORGET_USED.is_in(ddp.reducer):
        return "This torch's reducer cannot forget which parameters were used while another one reduced."
    return None
