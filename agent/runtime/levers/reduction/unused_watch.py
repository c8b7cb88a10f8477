"""Watches a model whose DDP searches for no unused parameters: what got no gradient is handed over all the same.

Without the search a parameter without a gradient leaves its bucket unreduced: this rank would train on gradients of
its own, and the others would wait for ever. So after each backward pass that reduces, this rank asks its reducer
whether all came, and hands over what did not, as DDP does with what it finds by searching. All ranks learn which
parameters some rank has used, one small sum a pass, as with the search: the gradient of one that none has used stays
what it was.
"""

from __future__ import annotations

import re
import weakref
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist

from ... import current
from ...guard import Unsafe, guarded
from ...link.rank_output import say
from ...observe.reduced import list_reduced
from ...observe.tensors import find_tensors, look_past
from ...private_torch import CHECK_FINALIZED, MARK_READY
from ...untraced import untraced

_MISSING = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
"""In torch's own error, which names a hundred at most."""
_MOST_NAMES = 3
SEVERAL_PASSES = (
    "find_unused_parameters was switched off, and now the script computes the gradients of one forward in several "
    "backward passes: this rank would train on gradients of its own. Train without that setting."
)


class UnusedWatch:
    """Of one model; every rank has one in the same steps."""

    def __init__(self, ddp: Any) -> None:
        self._model = weakref.ref(ddp)
        parameters = list_reduced(ddp)
        self._used = torch.ones(len(parameters), dtype=torch.int32, device=parameters[0].device)
        self._sum: Any = None
        """Of the last pass, where it was not waited for yet."""
        self._hook: Any = None
        self._is_due = self._has_come = self._accumulates = False
        """Whether a forward has come whose backward reduces, that backward, and before it passes that do not reduce."""
        self._late: List[Tuple[torch.Tensor, Any]] = []
        """Parameters that were handed over in the last pass, with their gradients since."""
        self.names: List[str] = []
        """Parameters of this rank that ever got no gradient."""
        self.passes = self.late_passes = 0
        """That reduced, and those in which some parameter got no gradient."""

    def begin(self, ddp: Any) -> None:
        """Watch from here on, in trials and under `advisor run`. Every rank calls it between the same two steps."""
        self._is_due = self._has_come = self._accumulates = False
        self._late = []
        self._hook = ddp.register_forward_hook(guarded(self._note_forward), prepend=True)
        current.after_backward.append(self._finish)

    def end(self) -> None:
        """The search is on again, or another model trains."""
        self._hook.remove()
        current.after_backward.remove(self._finish)
        self._settle()

    @untraced
    def _note_forward(self, ddp: Any, _args: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._late = []
        if not ddp.require_backward_grad_sync:
            self._accumulates = True
            return
        self._is_due = True
        for tensor in find_tensors(output):
            with look_past(tensor):
                if tensor.grad_fn is not None:
                    tensor.register_hook(guarded(self._note_backward))

    def _note_backward(self, _gradient: Any) -> None:
        self._has_come = True

    @untraced
    def _finish(self) -> None:
        """After an outermost backward pass."""
        ddp = self._model()
        if ddp is None:
            return
        has_come, self._has_come = self._has_come and self._is_due, False
        if not all(_is_same(parameter, known) for parameter, known in self._late):
            raise Unsafe(SEVERAL_PASSES)
        missing = _list_missing(ddp)
        if not has_come:
            if missing:
                raise Unsafe(SEVERAL_PASSES)
            return
        self._is_due = False
        self.passes += 1
        self._settle()
        self._used.fill_(1)
        parameters = list_reduced(ddp) if missing else []
        before: Dict[int, Any] = {}
        while missing:
            before.update({index: _copy_gradient(parameters[index]) for index in missing})
            _hand_over(ddp, missing)
            missing = _list_missing(ddp)
        unused = [index for index, grad in before.items() if grad is None or not self._accumulates]
        if unused:
            self._used[unused] = 0
        self._accumulates = False
        self._sum = ddp.process_group.allreduce([self._used])
        if before:
            self._put_back(ddp, parameters, before)

    def _settle(self) -> None:
        if self._sum is not None:
            self._sum.wait()
            self._sum = None

    def _put_back(self, ddp: Any, parameters: List[Any], before: Dict[int, Any]) -> None:
        """What no rank has used keeps the gradient that it had."""
        self._settle()
        counts = self._used.tolist()
        for index, grad in before.items():
            if not counts[index]:
                if grad is None:
                    parameters[index].grad = None
                else:
                    with torch.no_grad():
                        parameters[index].grad.copy_(grad)
        self._late = [(parameters[index], _copy_gradient(parameters[index])) for index in before]
        self.late_passes += 1
        if not self.names:
            known = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
            self.names = [known[id(parameters[index])] for index in sorted(before)]
            say(
                f"find_unused_parameters is off, and on rank {dist.get_rank()} {self.describe()} got no gradient in a "
                "step. They were handed over as DDP does with its search on, so the training is the same; where that "
                "comes often, train without this setting."
            )

    @property
    def is_searched(self) -> bool:
        """Whether the model's reducer searches all the same."""
        ddp = self._model()
        return ddp is None or bool(ddp.find_unused_parameters)

    def describe(self) -> str:
        rest = len(self.names) - _MOST_NAMES
        return ", ".join(self.names[:_MOST_NAMES]) + (f" and {rest} others" if rest > 0 else "")


def _copy_gradient(parameter: torch.Tensor) -> Any:
    return None if parameter.grad is None else parameter.grad.detach().clone()


def _is_same(parameter: torch.Tensor, known: Any) -> bool:
    if known is None or parameter.grad is None:
        return bool(parameter.grad is known)
    return bool(torch.equal(parameter.grad, known))


def _list_missing(ddp: Any) -> List[int]:
    """Indices of parameters, a hundred at most, for whose gradients the reducer waits in vain."""
    try:
        CHECK_FINALIZED.of(ddp)()
    except RuntimeError as error:
        found = _MISSING.search(str(error))
        if found is None:
            raise
        return [int(index) for index in found.group(1).split()]
    return []


def _hand_over(ddp: Any, missing: List[int]) -> None:
    def mark(_: Any) -> None:
        for index in missing:
            MARK_READY.of(ddp)(index)

    # A reducer finishes at the end of a backward pass, so that there has to be one.
    pulse = torch.zeros((), requires_grad=True).clone()
    pulse.register_hook(mark)
    pulse.backward()
