"""TorchRec's sharded tables: found in a model that does not list them among its parameters."""

from __future__ import annotations

import sys
from typing import Any, Iterable

NAME = "torchrec"


def has_tables(modules: Iterable[Any]) -> bool:
    """Whether one of them holds tables that TorchRec's kernels update inside backward."""
    kind = getattr(sys.modules.get("torchrec.optim.fused"), "FusedOptimizerModule", None)
    return isinstance(kind, type) and any(isinstance(module, kind) for module in modules)
