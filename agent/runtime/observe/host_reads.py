"""Where a script reads values off the device (`loss.item()`, `print(loss)`): the host waits, and queues nothing."""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import torch

CALLS = ("item", "tolist", "cpu", "numpy", "to", "__bool__", "__int__", "__float__", "__repr__", "__format__")
"""Tensor's methods that hand a value to the host. Indexing by a mask and nonzero() wait too, and are not seen."""
MOST_SITES = 5
OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MISSING = object()


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether reading the tensor waits for a device."""
    return str(tensor.device.type) != "cpu"


class HostReads:
    """Counts reads by the line of the script that makes them, for the few steps between start() and stop()."""

    def __init__(self, counts: Callable[[torch.Tensor], bool] = is_on_device) -> None:
        self._counts = counts
        self._found: Dict[Tuple[str, str], List[float]] = {}
        self._replaced: Dict[str, Any] = {}
        self._depth = 0

    def start(self) -> None:
        """Watch from here on, unless it is watched already; a script's compiled parts have been traced by then."""
        if self._replaced:
            return
        for name in CALLS:
            self._replaced[name] = torch.Tensor.__dict__.get(name, _MISSING)
            setattr(torch.Tensor, name, self._wrap(name, getattr(torch.Tensor, name)))

    def stop(self) -> None:
        """Leave torch.Tensor as it was found."""
        for name, original in self._replaced.items():
            if original is _MISSING:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)
        self._replaced = {}

    def describe(self, steps: int) -> List[Dict[str, Any]]:
        """The lines that read most, each with its reads and the seconds waited in one of `steps` steps."""
        rows = sorted(self._found.items(), key=lambda found: -sum(found[1]))[:MOST_SITES]
        return [
            {"site": site, "call": call, "per_step": len(waits) / steps, "waited_s": sum(waits) / steps}
            for (site, call), waits in rows
        ]

    def _wrap(self, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not self._counts(tensor):
                return original(tensor, *args, **kwargs)
            self._depth += 1
            start_s = time.perf_counter()
            try:
                value = original(tensor, *args, **kwargs)
            finally:
                waited_s = time.perf_counter() - start_s
                self._depth -= 1
            if name != "to" or value.device.type == "cpu" != tensor.device.type:
                self._found.setdefault((find_site(), name), []).append(waited_s)
            return value

        return read


def find_site() -> str:
    """`train.py:41`: the innermost line that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((OWN, TORCH)):
        frame = frame.f_back
    path = frame.f_code.co_filename
    inside = path.split("site-packages" + os.sep)[-1]
    near = os.path.relpath(path) if inside == path else inside
    return f"{path if near.startswith(os.pardir) else near}:{frame.f_lineno}"
