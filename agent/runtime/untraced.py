"""Keeps torch.compile out of the runtime: what a script compiles must stay what it was without us.

`untraced` keeps it out of a function and of all that it calls, which costs each call about four microseconds in the
middle of a training step. What runs in every step is kept out by `skip_frames`, frame by frame, which costs nothing.
"""

from __future__ import annotations

from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, Iterable, Iterator, TypeVar

import torch

from .private_torch import DISABLE_DYNAMO, SKIP_CODE, SKIP_FUNCTION

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """`function` as torch.compile never traces it, nor what it calls. Imports Dynamo at the first call only, as torch's
    own optimizers do."""
    # torch.compiler.disable, which is not private, imports Dynamo before the script could configure anything.
    disable: Callable[[Function], Function] = DISABLE_DYNAMO.find_loaded() or torch.compiler.disable
    return disable(function)


def skip_frames(*modules: ModuleType) -> None:
    """No function of these modules is traced; to be called when Dynamo was imported, which traces nothing before.

    They call one another, torch, and `untraced` functions. Functions made inside others, as the patches are, are traced
    with what calls them where a script compiles that.
    """
    try:
        _skip_frames(modules, SKIP_FUNCTION.load(), SKIP_CODE.load())
    except Exception:
        # The script imports Dynamo at this moment. Traced, they cost it time, and change nothing that it computes.
        return


def _skip_frames(modules: Iterable[ModuleType], skip_function: Any, skip_code: Any) -> None:
    for module in modules:
        for value in vars(module).values():
            for found in vars(value).values() if isinstance(value, type) else (value,):
                found = found.fget if isinstance(found, property) else found
                if isinstance(found, FunctionType) and found.__code__.co_filename == module.__file__:
                    skip_function(found)
                    for code in _list_inner(found.__code__):
                        skip_code(code)


def _list_inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _list_inner(constant)
