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
from ..private_torch import REPEATED, REPEATED_IMPL


def patch_recomputation(is_compiling: Callable[[], bool]) -> None:
    """Once per process."""
    _patch_generator(is_compiling)
    _patch_function(is_compiling)


def _patch_generator(is_compiling: Callable[[], bool]) -> None:
    if REPEATED_IMPL.is_in(checkpointing):
        # From torch 2.14 on the older name is kept for others only, and ends here as well.
        REPEATED_IMPL.set(checkpointing, _enter_by_name(REPEATED_IMPL.of(checkpointing), is_compiling))
    elif REPEATED.is_in(checkpointing):
        REPEATED.set(checkpointing, _enter_by_place(REPEATED.of(checkpointing), is_compiling))


def _enter_by_name(original: Any, is_compiling: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def enter(
        function: Any,
        args: Any,
        kwargs: Any,
        *,
        preserve_rng_state: bool = True,
        context_fn: Any = checkpointing.noop_context_fn,
        **options: Any,
    ) -> Any:
        told = _tell(function, preserve_rng_state, is_compiling)
        if told is None:
            return _keep(context_fn)
        options.update(preserve_rng_state=preserve_rng_state, context_fn=context_fn)
        return original(told, args, kwargs, **options)

    return enter


def _enter_by_place(original: Any, is_compiling: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def enter(
        function: Any,
        preserves: bool = True,
        contexts: Any = checkpointing.noop_context_fn,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        told = _tell(function, preserves, is_compiling)
        return _keep(contexts) if told is None else original(told, preserves, contexts, *args, **kwargs)

    return enter


def _tell(function: Any, preserves: bool, is_compiling: Callable[[], bool]) -> Any:
    """What torch is to call again in the backward pass; None where its activations are to be kept."""
    runtime = None if is_compiling() else current.current_runtime
    return function if runtime is None else runtime.checkpoint(function, preserves, False)


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
