"""The runtime patches torch.utils.checkpoint where all its ways end, so that it sees every script's calls.

It does not matter who imported a name of that module, or when: `checkpoint`, `checkpoint_sequential`,
`checkpoint_wrapper` and the frameworks' switches end in one of two places of it: a generator around the call, or, the
older and reentrant way, an autograd function. What a script compiles reaches neither, nor do
engines with checkpointing of their own (Megatron, DeepSpeed's).
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator

import torch
import torch.utils.checkpoint as checkpointing

from .. import current
from ..private_torch import REPEATED


def patch_recomputation(is_compiling: Callable[[], bool]) -> None:
    """Once per process."""
    _patch_generator(is_compiling)
    _patch_function(is_compiling)


def _patch_generator(is_compiling: Callable[[], bool]) -> None:
    original = REPEATED.find(checkpointing)
    if original is None:
        return  # nothing of it is seen, and the knob is refused

    @functools.wraps(original)
    def enter(
        function: Any,
        preserves: bool = True,
        contexts: Any = checkpointing.noop_context_fn,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        runtime = None if is_compiling() else current.current_runtime
        told = function if runtime is None else runtime.checkpoint(function, preserves, False)
        return _keep(contexts) if told is None else original(told, preserves, contexts, *args, **kwargs)

    REPEATED.set(checkpointing, enter)


def _keep(contexts: Callable[[], Any]) -> Iterator[None]:
    """The forward's own context around the call, and nothing else; torch's of selective checkpointing, which only holds
    what need not be computed again, is left out."""
    around = contexts()[0]
    with contextlib.nullcontext() if type(around).__module__ == checkpointing.__name__ else around:
        yield


def _patch_function(is_compiling: Callable[[], bool]) -> None:
    original = checkpointing.CheckpointFunction.apply

    @functools.wraps(original)
    def apply(function: Any, preserves: bool, *args: Any) -> Any:
        runtime = None if is_compiling() else current.current_runtime
        # Where no argument needs a gradient it trains nothing inside: that stays as it is.
        if runtime is None or not any(isinstance(each, torch.Tensor) and each.requires_grad for each in args):
            return original(function, preserves, *args)
        told = runtime.checkpoint(function, preserves, True)
        return function(*args) if told is None else original(told, preserves, *args)

    checkpointing.CheckpointFunction.apply = staticmethod(apply)
