"""Keeps torch.compile out of the runtime: what a script compiles must stay what it was without us."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch

from .private_torch import DISABLE_DYNAMO

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """`function` as torch.compile never traces it, nor what it calls. Imports Dynamo at the first call only, as torch's
    own optimizers do."""
    # torch.compiler.disable, which is not private, imports Dynamo before the script could configure anything.
    disable: Any = DISABLE_DYNAMO.find_loaded() or torch.compiler.disable
    return disable(function)
