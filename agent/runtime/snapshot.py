"""Saves the model and the optimizers in host memory before an inexact block, and puts them back in place after it."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Tuple

import torch


class ModelSnapshot:
    """Parameters, buffers and optimizer state. Not saved: learning-rate schedules, loss scales, data order."""

    @torch.no_grad()
    def __init__(self, replicas: List[Any], optimizers: List[Any]) -> None:
        self._tensors: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for ddp in replicas:
            for tensor in [*ddp.module.parameters(), *ddp.module.buffers()]:
                self._tensors.append((tensor, _save(tensor)))
        self._states: List[Tuple[Any, Dict[Any, Any]]] = []
        for optimizer in optimizers:
            saved = {
                key: {name: _save(value) for name, value in state.items()}
                for key, state in _list_states(optimizer)
            }
            self._states.append((optimizer, saved))

    @torch.no_grad()
    def restore(self) -> None:
        """In place, so that views, fused optimizers and captured pointers stay valid.

        Through .data, because a script may already hold a graph over the weights, whose version check must not fail.
        """
        for tensor, saved in self._tensors:
            tensor.data.copy_(saved)
        for optimizer, states in self._states:
            for key, current in _list_states(optimizer):
                if key not in states:
                    del optimizer.state[key]
                    continue
                for name in [name for name in current if name not in states[key]]:
                    del current[name]
                for name, saved in states[key].items():
                    present = current.get(name)
                    if isinstance(present, torch.Tensor) and isinstance(saved, torch.Tensor):
                        present.copy_(saved)
                    else:
                        current[name] = copy.deepcopy(saved)


def _list_states(optimizer: Any) -> List[Tuple[Any, Dict[str, Any]]]:
    return [(key, state) for key, state in list(optimizer.state.items()) if isinstance(state, dict)]


def _save(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return copy.deepcopy(value)
