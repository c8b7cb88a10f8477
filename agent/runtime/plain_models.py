"""Models that nothing wraps or shards, of the job's only rank or of a diagnosis: found through their optimizers, by
what is called.

The outermost module that holds an optimizer's parameters need not be one that the script calls: it may be a container,
or be used by its methods (Lightning's training_step). What was not called when the optimizer steps again makes way for
the modules in it. An engine's optimizer may hold copies or pieces of the parameters, of which no module tells: then a
diagnosis takes all outermost modules that can be trained.
"""

from __future__ import annotations

import weakref
from typing import Any, List, Set, Tuple

import torch

from . import hooks
from .observe.models import Models
from .observe.sharded import find_outermost, list_outermost
from .observe.steps import list_parameters


class PlainModels:
    """Puts each that is called among the rank's models, with hooks around its forward."""

    def __init__(self, models: Models, looks_only: bool) -> None:
        self._models, self._looks_only = models, looks_only
        self._waiting: List[Tuple[Any, List[Any]]] = []
        """Modules that were not called yet, each with its hooks."""
        self._asked: List[Any] = []
        """Optimizers whose modules are watched."""
        self._takes_all = False

    def look(self, optimizer: Any) -> bool:
        """At an optimizer's step: whether models have come."""
        count = len(self._models.list_known())
        if not any(known() is optimizer for known in self._asked):
            self._asked = [known for known in self._asked if known() is not None]
            self._asked.append(weakref.ref(optimizer))
            known = {id(part) for model in self._models.list_known() for part in model.modules()}
            roots = find_outermost(optimizer, (torch.nn.Module,))
            if not roots and not known and self._looks_only:
                self._takes_all = True
                roots = [root for root in list_outermost((torch.nn.Module,)) if self._holds(root, set())]
            for root in roots:
                if id(root) not in known:
                    self._watch(root)
        elif self._waiting:
            self._descend({id(parameter) for parameter in list_parameters(optimizer)})
        return len(self._models.list_known()) > count

    def _watch(self, module: Any) -> None:
        self._models.add_plain(module)
        self._waiting.append((weakref.ref(module), hooks.watch(module)))

    def _descend(self, trained: Set[int]) -> None:
        """Where this optimizer trains what was never called."""
        waiting, self._waiting = self._waiting, []
        for reference, handles in waiting:
            module = reference()
            if module is None or id(module) in self._models.last_forward:
                continue
            inner = [part for part in module.children() if self._holds(part, trained)]
            if not self._holds(module, trained) or not inner:
                self._waiting.append((reference, handles))
                continue
            for handle in handles:
                handle.remove()
            self._models.drop_plain(module)
            for part in inner:
                self._watch(part)

    def _holds(self, module: Any, trained: Set[int]) -> bool:
        if self._takes_all:
            return any(parameter.requires_grad for parameter in module.parameters())
        return any(id(parameter) in trained for parameter in module.parameters())
