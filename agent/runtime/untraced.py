"""Keeps torch.compile out of the runtime: what a script compiles must stay what it was without us."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """`function` as torch.compile never traces it, nor what it calls. Imports Dynamo at the first call only, as torch's
    own optimizers do."""
    # torch.compiler.disable would import Dynamo now, before the script could configure anything.
    disable: Any = getattr(getattr(torch, "_compile", None), "_disable_dynamo", None)
    return function if disable is None else disable(function)
