"""The one process-wide name: the runtime that torch's patches and hooks report to, or None."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from .runtime import Runtime

current_runtime: "Optional[Runtime]" = None


def set_current(runtime: "Optional[Runtime]") -> None:
    global current_runtime
    current_runtime = runtime


def _forget_in_child() -> None:
    # DataLoader workers are forked copies of a rank: they inherit the patches, and must neither time nor talk. Their
    # copy of the control socket is closed, so that the agent sees at once when the rank itself is gone.
    runtime = current_runtime
    set_current(None)
    if runtime is not None and runtime.control is not None:
        runtime.control.close()


os.register_at_fork(after_in_child=_forget_in_child)
