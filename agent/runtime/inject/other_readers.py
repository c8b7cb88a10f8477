"""Watches readers that are no DataLoader of torch's: torchdata's nodes and StatefulDataLoader, and NVIDIA DALI.

What they make the training wait is then no code of the script's own. Their settings stay as they are.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from .. import current
from .after_import import call_after_import


@functools.lru_cache(maxsize=None)
def watch_other_readers() -> None:
    """Once per process. Where a release has another name, its waits are told as the script's own code."""
    call_after_import("torchdata.nodes.base_node", lambda: _time("torchdata.nodes.base_node", "BaseNode"))
    dali = "nvidia.dali.plugin.pytorch"
    call_after_import(dali, lambda: _time(dali, "DALIGenericIterator"))
    stateful = "torchdata.stateful_dataloader.stateful_dataloader"
    call_after_import(stateful, lambda: _note_epochs(stateful, "StatefulDataLoader"))


def _time(module: str, name: str) -> None:
    kind: Any = getattr(sys.modules[module], name, None)
    original = getattr(kind, "__next__", None)
    if original is None:
        return
    is_reading = False

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        # A node asks others for what it is made of, in threads too: the outermost one is the training's.
        nonlocal is_reading
        runtime = current.current_runtime
        if runtime is None or is_reading or threading.current_thread() is not threading.main_thread():
            return original(self)
        is_reading = True
        try:
            return runtime.read_batch(self, original)
        finally:
            is_reading = False

    kind.__next__ = fetch


def _note_epochs(module: str, name: str) -> None:
    kind: Any = getattr(sys.modules[module], name, None)
    original = getattr(kind, "__iter__", None)
    if original is None:
        return

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        runtime = current.current_runtime
        return original(self) if runtime is None else runtime.start_epoch(self, original)

    kind.__iter__ = iterate
