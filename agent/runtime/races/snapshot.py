"""Saves what an inexact block changes in host memory before it, and puts it back in place after it."""

from __future__ import annotations

import copy
import gc
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.optim.swa_utils import AveragedModel

from ..levers.lever import Training
from ..loading.random_numbers import RandomNumbers
from ..observe.torchrec import has_tables


class TrainingSnapshot:
    """Models with their buffers, averaged copies of them, optimizers, loss scales and torch's random numbers.

    Of an optimizer its state and its numbers (learning rate, momentum) are saved. Not saved: what a scheduler counts,
    so it goes on as if the steps of the block had been taken; averages that the script keeps outside torch's
    AveragedModel; random numbers of Python and NumPy; the place in the data.
    """

    def __init__(self, training: Training) -> None:
        with torch.no_grad():
            self._tensors = [(tensor, save(tensor)) for tensor in list_tensors(training)]
            self._states: List[Tuple[Any, Dict[Any, Any]]] = []
            self._groups: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
            for optimizer in training.optimizers:
                saved = {
                    key: {name: save(value) for name, value in state.items()}
                    for key, state in list_states(optimizer)
                }
                self._states.append((optimizer, saved))
                for group in optimizer.param_groups:
                    numbers = {name: save(value) for name, value in group.items() if is_number(value)}
                    self._groups.append((group, numbers))
            self._scalers = [(scaler, scaler.state_dict()) for scaler in training.precision.scalers]
            self._random = RandomNumbers(
                {tensor.device.index for tensor, _ in self._tensors if tensor.is_cuda}
            )

    def restore(self) -> None:
        """In place, so that views, fused optimizers and captured pointers stay valid.

        Through .data, because a script may already hold a graph over the weights, whose version check must not fail.
        """
        with torch.no_grad():
            for tensor, saved in self._tensors:
                tensor.data.copy_(saved)
            for optimizer, states in self._states:
                for key, current in list_states(optimizer):
                    if key not in states:
                        del optimizer.state[key]
                        continue
                    for name in [name for name in current if name not in states[key]]:
                        del current[name]
                    put_back(current, states[key])
            for group, numbers in self._groups:
                put_back(group, numbers)
            for scaler, state in self._scalers:
                scaler.load_state_dict(state)
            self._random.restore()


SHARE = 0.5
"""The most of a node's free memory that its ranks' snapshots may take."""


def explain_no_snapshot(training: Training, local_world_size: int, free_bytes: int) -> Optional[str]:
    """Why there is no copy of what training changes in this rank's part of a node's free memory, or None."""
    if has_tables(training.list_modules()):
        return (
            "It changes what is computed, and what it trained could not be put back: TorchRec keeps its tables and "
            "their optimizers' numbers out of the model's own lists."
        )
    size = count_snapshot_bytes(training)
    if not free_bytes or size * local_world_size <= SHARE * free_bytes:
        return None
    return (
        f"It changes what is computed, so model and optimizers would be saved in host memory first: "
        f"{size * local_world_size / 2**30:.1f} GiB for {local_world_size} ranks of this node, more than half of the "
        f"{free_bytes / 2**30:.1f} GiB that are free."
    )


def count_snapshot_bytes(training: Training) -> int:
    """Bytes of host memory that this rank's snapshot takes."""
    states = [
        read_local(value)
        for optimizer in training.optimizers
        for _, state in list_states(optimizer)
        for value in state.values()
    ]
    tensors = [*list_tensors(training), *(value for value in states if isinstance(value, torch.Tensor))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def list_tensors(training: Training) -> List[torch.Tensor]:
    """Every tensor that training writes, once: also parameters that an optimizer has and no model."""
    modules = [*training.replicas, *training.sharded, *training.known, *_find_averaged_models()]
    tensors = [parameter for module in modules for parameter in module.parameters()]
    # Not by buffers(): Megatron's DDP has a list in that method's place.
    tensors += [buffer for module in modules for _, buffer in module.named_buffers()]
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    tensors += [parameter for group in groups for parameter in group["params"]]
    return [read_local(tensor) for tensor in {id(tensor): tensor for tensor in tensors}.values()]


def _find_averaged_models() -> List[Any]:
    """Scripts keep them where they like: only the garbage collector knows them all."""
    return [item for item in gc.get_objects() if issubclass(type(item), AveragedModel)]


def list_states(optimizer: Any) -> List[Tuple[Any, Dict[str, Any]]]:
    return [(key, state) for key, state in list(optimizer.state.items()) if isinstance(state, dict)]


def is_number(value: Any) -> bool:
    """Learning rates and the like may be numbers, tensors or tuples; flags belong to the levers."""
    if isinstance(value, tuple):
        return all(is_number(item) for item in value)
    return isinstance(value, (int, float, torch.Tensor)) and not isinstance(value, bool)


def put_back(current: Dict[str, Any], saved: Dict[str, Any]) -> None:
    for name, value in saved.items():
        present = read_local(current.get(name))
        if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor):
            present.copy_(value)
        else:
            current[name] = copy.deepcopy(value)


def save(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return read_local(value).detach().to("cpu", copy=True)
    return copy.deepcopy(value)


def read_local(value: Any) -> Any:
    """This rank's part of a sharded tensor (DTensor)."""
    return value.to_local() if hasattr(value, "to_local") else value
