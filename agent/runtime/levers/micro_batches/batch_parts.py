"""Cuts a model's input into parts along the batch, and puts the outputs of the parts together again."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator, List, Mapping, Sequence, Tuple

import torch

DEEPEST = 6
"""How deep containers are searched for a tensor; batches nest two or three levels."""
MEAN, SUM = "mean", "sum"
"""What one number of the whole batch is of those of its parts: their mean, weighted by samples, or their sum."""


class Inseparable(ValueError):
    """This input or output cannot be cut or put together; the sentence says why."""


def list_tensors(value: Any, depth: int = 0) -> List[torch.Tensor]:
    """All tensors inside `value`, numbers too, in reading order."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = _list_items(value) if depth < DEEPEST else ()
    return [tensor for item in items for tensor in list_tensors(item, depth + 1)]


def _list_items(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return ()


def count_samples(inputs: Any) -> int:
    """Dimension 0 of the first tensor that has one; 0 without any."""
    return next((int(tensor.shape[0]) for tensor in list_tensors(inputs) if tensor.dim()), 0)


def share_out(samples: int, parts: int) -> List[int]:
    """Sizes of so many parts, equal but for one sample."""
    return [samples // parts + (place < samples % parts) for place in range(parts)]


def cut(inputs: Any, samples: int, sizes: Sequence[int]) -> Iterator[Any]:
    """The inputs of each part: tensors with that many samples in front are cut, all else is given to each part."""
    start = 0
    for size in sizes:
        end = start + size
        yield _map(inputs, lambda tensor: _cut_tensor(tensor, samples, start, end))  # noqa: B023
        start = end


def _cut_tensor(tensor: torch.Tensor, samples: int, start: int, end: int) -> torch.Tensor:
    return tensor[start:end] if tensor.dim() and tensor.shape[0] == samples else tensor


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if depth >= DEEPEST:
        return value
    items = [_map(item, change, depth + 1) for item in _list_items(value)]
    return _rebuild(value, items) if items else value


def _rebuild(value: Any, items: List[Any]) -> Any:
    """A container like `value` that holds `items`."""
    if isinstance(value, Mapping):
        named = dict(zip(value, items))
        return type(value)(**named) if dataclasses.is_dataclass(value) else type(value)(named)  # type: ignore[call-arg]
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return type(value)(items)
    names = [field.name for field in dataclasses.fields(value)]
    return dataclasses.replace(value, **dict(zip(names, items)))


def join(outputs: Sequence[Any], sizes: Sequence[int], reduction: str) -> Any:
    """The output of the whole batch from those of its parts. Raises Inseparable where it is not made of them."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return _join_tensors(outputs, sizes, reduction)
    if any(type(output) is not type(first) for output in outputs):
        raise Inseparable("The model's output has another form for another part of the batch.")
    rows = [_list_items(output) for output in outputs]
    if rows[0]:
        if len({len(row) for row in rows}) > 1:
            raise Inseparable("The model's output has another form for another part of the batch.")
        return _rebuild(first, [join(column, sizes, reduction) for column in zip(*rows)])
    if type(first).__name__.endswith("Cache"):
        # Keys and values for generating text, which transformers hands out in training too.
        return None
    if first is None or (isinstance(first, (bool, int, str)) and all(output == first for output in outputs)):
        return first
    if isinstance(first, (list, tuple, Mapping)):
        return first
    raise Inseparable(f"The model gives a {type(first).__name__}, which cannot be put together from parts.")


def _join_tensors(outputs: Sequence[torch.Tensor], sizes: Sequence[int], reduction: str) -> torch.Tensor:
    first = outputs[0]
    if first.dim() and all(output.shape[0] == size for output, size in zip(outputs, sizes)):
        return torch.cat(list(outputs))
    if first.dim() == 0 and first.is_floating_point():
        samples = sum(sizes)
        weights = [size / samples if reduction == MEAN else 1.0 for size in sizes]
        weighted = [output * weight for output, weight in zip(outputs, weights)]
        return torch.stack(weighted).sum()
    shape = tuple(first.shape)
    raise Inseparable(
        f"The model gives a tensor of shape {shape} for {sizes[0]} samples, which is not one row each."
    )


def measure_difference(whole: Sequence[Any], joined: Sequence[Any]) -> float:
    """The largest of the tensors' relative differences; infinite where they are of other shapes."""
    if len(whole) != len(joined):
        return float("inf")
    return max((_compare(ours, theirs) for ours, theirs in zip(whole, joined)), default=0.0)


def _compare(whole: Any, joined: Any) -> float:
    if whole is None or joined is None:
        return 0.0 if whole is joined else float("inf")
    if whole.shape != joined.shape:
        return float("inf")
    kind = torch.complex128 if whole.is_complex() else torch.float64
    exact, other = whole.detach().to(kind), joined.detach().to(kind)
    difference, norm = float((exact - other).norm()), float(exact.norm())
    if difference != difference:
        return 0.0 if bool(torch.equal(exact.isnan(), other.isnan())) else float("inf")
    return difference / norm if norm else difference


def cut_one(inputs: Tuple[Any, Any], samples: int) -> Tuple[Any, Any]:
    """The first sample alone, in memory of its own."""
    one: Tuple[Any, Any] = _map(inputs, lambda tensor: _cut_tensor(tensor, samples, 0, 1).detach().clone())
    return one
