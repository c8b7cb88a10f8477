"""The process's environment as C has it, where libraries write that Python's own copy does not hear of."""

from __future__ import annotations

import ctypes
from typing import Optional


def read_variable(name: str) -> Optional[str]:
    """NCCL, for one, puts the lines of its own file (nccl.conf) there."""
    get = ctypes.CDLL(None).getenv
    get.argtypes, get.restype = [ctypes.c_char_p], ctypes.c_char_p
    found: Optional[bytes] = get(name.encode())
    return None if found is None else found.decode(errors="replace")
