"""Which parameters a DistributedDataParallel model reduces: those that torch built the script's own reducer from.

DDP takes what requires a gradient when the model is wrapped, and keeps to these parameters whatever the script freezes
later. Asking DDP anew would leave out what happens to be frozen at that moment, so what it took is kept here.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

import torch
from torch.nn.parallel import DistributedDataParallel

from ..private_torch import BUILD_REDUCER, DELAYED, DELAYS_ALL


@dataclass(frozen=True)
class Reduced:
    """The first three arguments of DDP's init helper."""

    parameters: List[torch.Tensor]
    sparse: List[bool]
    """Whether each parameter's gradient is expected to be sparse."""
    names: Dict[int, str]

    @property
    def size_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for parameter in self.parameters)


_KNOWN: "weakref.WeakKeyDictionary[Any, Reduced]" = weakref.WeakKeyDictionary()


def watch_building() -> None:
    """From here on notes what every reducer is built from; before the script wraps a model."""
    original = BUILD_REDUCER.find(DistributedDataParallel)
    if original is None:
        return  # and no reducer can be built anew

    @functools.wraps(original)
    def build(self: Any, parameters: Any, sparse: Any, names: Any, *more: Any, **named: Any) -> Any:
        result = original(self, parameters, sparse, names, *more, **named)
        _KNOWN[self] = Reduced(list(parameters), list(sparse or [False] * len(parameters)), dict(names))
        return result

    BUILD_REDUCER.set(DistributedDataParallel, build)


def find_reduced(ddp: Any) -> Optional[Reduced]:
    """What the model's reducer was built from; None where that was not seen."""
    return _KNOWN.get(ddp)


def list_reduced(ddp: Any) -> List[torch.Tensor]:
    """The parameters whose gradients this model reduces, in the order of definition; none where that was not seen."""
    reduced = find_reduced(ddp)
    return reduced.parameters if reduced is not None else []


def count_reduced(ddp: Any) -> int:
    """Parameters that are reduced in each pass; 0 where that is not known, or where DDP leaves out unused ones."""
    return 0 if getattr(ddp, "skip_all_reduce_unused_params", False) else len(list_reduced(ddp))


def explain_delay(ddp: Any) -> str:
    """That a hook beside its reducer reduces gradients of this model: the beginning of a sentence or ""."""
    if DELAYS_ALL.find(ddp) or DELAYED.find(ddp):
        return "The script delays all-reduces of some parameters (delay_all_reduce_named_params)"
    return ""


def explain_own_ending(ddp: Any) -> str:
    """That the script waits for the reduction by itself, as from torch 2.15 on: a sentence's beginning or ""."""
    if getattr(ddp, "require_manual_backward_finalization", False):
        return "The script ends each backward pass by finalize_backward()"
    return ""
