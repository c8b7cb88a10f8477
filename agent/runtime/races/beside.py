"""What a step does to gradients before its optimizer steps, and what it keeps in the shape of the parameters.

The operators that run tell it, whoever calls them: a script that clips reads gradients and multiplies them, one that
averages its weights writes into a copy of them in each step, and keeps the copy.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..guard import guarded
from ..observe.tensors import find_tensors

_CLIPS = ("clamp", "clip")
_SCALES = ("mul_", "div_", *_CLIPS)
"""In the names of operators that write to gradients where they are clipped."""
_EXCHANGES = "c10d"
"""How the libraries are called whose operators exchange tensors between ranks, some with an underline in front."""


class BesideCount:
    """Of one rank, from `begin` to `end` of a step."""

    def __init__(self, parameters: Sequence[Any], modules: Sequence[Any]) -> None:
        self._parameters, self._modules = parameters, modules
        self._gradients: Dict[int, int] = {}
        """By address, the place of the parameter; while they are there and no optimizer has stepped."""
        self.read: List[bool] = []
        """Of each parameter, whether an operator looked at its gradient."""
        self.scaled: List[bool] = []
        """Whether one clipped it, or multiplied it."""
        self._written: Dict[int, Tuple[StorageWeakRef, Tuple[int, ...]]] = {}
        """By address of its memory, the shape of what an operator made or changed."""

    def begin(self) -> None:
        """A step begins."""
        self.read, self.scaled = [False] * len(self._parameters), [False] * len(self._parameters)
        self._written, self._gradients = {}, {}

    def note_gradients(self, are_there: bool) -> None:
        """A backward pass has ended; or an optimizer steps, which may do with them what it likes."""
        self._gradients = {}
        if are_there:
            for place, parameter in enumerate(self._parameters):
                if type(parameter.grad) is torch.Tensor and parameter.grad.layout is torch.strided:
                    self._gradients[parameter.grad.data_ptr()] = place

    @guarded
    def note(self, operator: str, args: Any, kwargs: Any, result: Any) -> None:
        """An operator (`aten.mul_`) ran outside of forward and backward passes."""
        library, _, name = operator.partition(".")
        if library.lstrip("_").startswith(_EXCHANGES):
            return
        changes = name.endswith("_") and name != "zero_"
        for tensor in _list_plain([args, kwargs]) if self._gradients else ():
            if (place := self._gradients.get(tensor.data_ptr())) is not None:
                self.scaled[place] |= changes and any(word in name for word in _SCALES)
                self.read[place] |= not changes or any(word in name for word in _CLIPS)
        given = {tensor.untyped_storage().data_ptr() for tensor in _list_plain([args, kwargs])}
        for tensor in _list_plain(args[:1] if changes else result):
            address = tensor.untyped_storage().data_ptr()
            if tensor.is_floating_point() and (changes or address not in given):
                self._written[address] = StorageWeakRef(tensor.untyped_storage()), tuple(tensor.shape)

    def find_kept(self, optimizers: Sequence[Any]) -> List[bool]:
        """At the end of a step: of each parameter, whether something of its shape was written that is still there.

        The parameters themselves, their gradients, the models' buffers and the optimizers' states are left out.
        """
        own = [*self._parameters, *(parameter.grad for parameter in self._parameters)]
        own += [buffer for module in self._modules for buffer in module.buffers()]
        own += [state for optimizer in optimizers for state in optimizer.state.values()]
        known = {tensor.untyped_storage().data_ptr() for held in own for tensor in _list_plain(held)}
        shapes = Counter(
            shape
            for address, (storage, shape) in self._written.items()
            if address not in known and not storage.expired()
        )
        if shapes[(sum(int(parameter.numel()) for parameter in self._parameters),)]:
            return [True] * len(self._parameters)
        kept = []
        for parameter in self._parameters:
            shape = tuple(parameter.shape)
            kept.append(shapes[shape] > 0)
            shapes[shape] -= 1
        return kept


def _list_plain(value: Any) -> Iterator[torch.Tensor]:
    """Those whose memory is their own rank's, and in one piece."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return (
        tensor
        for tensor in find_tensors(value)
        if type(tensor) in kinds and tensor.layout is torch.strided and not tensor.is_nested
    )
