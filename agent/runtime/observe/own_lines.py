"""Which lines are the script's own: neither torch's, ours nor another library's."""

from __future__ import annotations

import functools
import os
import sysconfig
from typing import Any

from .host_reads import OWN

_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@functools.lru_cache(maxsize=None)
def is_own(path: str) -> bool:
    """Whether a file is the script's."""
    is_library = path.startswith(_LIBRARIES) or "site-packages" in path or path.startswith("<")
    return not (is_library or path.startswith(OWN))


def find_own_line(frame: Any) -> str:
    """`path:line` of the innermost own one on this stack; "" where there is none."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def shorten(line: str) -> str:
    """From the working directory, where it lies there."""
    near = os.path.relpath(line) if line else ""
    return line if near.startswith(os.pardir) else near
