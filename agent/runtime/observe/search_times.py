"""How long DDP searches the graphs of a few steps for parameters without a gradient."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch.distributed as dist


class SearchTimes:
    """Of this rank, between start() and stop(): the host's time, which nothing hides where the host is waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._original: Any = None

    def start(self) -> None:
        """Watch from here on, unless it is watched already."""
        if self._original is not None or not dist.is_available():
            return
        original = self._original = dist.Reducer.prepare_for_backward

        @functools.wraps(original)
        def prepare(*args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start_s

        dist.Reducer.prepare_for_backward = prepare

    def stop(self) -> None:
        """Leave DDP's reducer as it was found."""
        if self._original is not None:
            dist.Reducer.prepare_for_backward, self._original = self._original, None
