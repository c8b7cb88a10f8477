"""Counts how many samples a step consumed, from the model's inputs and the loader's fetches."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, List, Mapping, Optional

import torch

from ..untraced import untraced

DEEPEST = 6
"""How deep containers are searched for a tensor; batches nest two or three levels."""


def find_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors with at least one dimension inside `value`, in reading order."""
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            yield value
        return
    if depth >= DEEPEST or value is None or isinstance(value, (str, bytes, int, float)):
        return
    if isinstance(value, Mapping):
        for item in value.values():
            yield from find_tensors(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_tensors(item, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from find_tensors(getattr(value, field.name, None), depth + 1)


@untraced
def count_samples(args: Any, kwargs: Any, loader_batch_size: Optional[int]) -> int:
    """Samples in one forward: dimension 0 of the first tensor, unless another dimension alone is the loader's batch."""
    for source in (args, kwargs):
        for tensor in find_tensors(source):
            shape: List[int] = list(tensor.shape)
            if loader_batch_size and loader_batch_size in shape and shape[0] != loader_batch_size:
                return loader_batch_size
            return shape[0]
    return 0


class SampleCount:
    """Adds up a step's samples.

    With a DataLoader each fetched batch is counted at one forward only: a discriminator that sees the same batch three
    times did not consume three batches. Without one every forward of the step's first model counts.
    """

    def __init__(self, fixed: Optional[int]) -> None:
        self._fixed = fixed
        self._fetched = 0
        self._loader_seen = False
        self._first_model: Optional[int] = None
        self.loader_batch_size: Optional[int] = None
        self.sharers = 1
        """Ranks that are given the same samples, so that each counts its share of them."""
        self.samples = 0
        self.forwards = 0
        self.told: Optional[int] = None
        """What the script itself says it consumed in this step."""

    def note_fetch(self) -> None:
        """A batch was read while the model was in training mode (batches read in eval mode feed no training step)."""
        self._loader_seen = True
        self._fetched += 1

    def note_forward(self, model: int, args: Any, kwargs: Any, multiple: int = 1) -> None:
        """`multiple` of the script's batches were read as one."""
        if self._first_model is None:
            self._first_model = model
        elif model != self._first_model:
            return
        if self._loader_seen:
            if self._fetched == 0 and self.samples > 0:
                return
            self._fetched = max(0, self._fetched - 1)
        self.forwards += 1
        size = self.loader_batch_size
        if size and multiple != 1:
            size *= multiple
        # The usual case without the search: one tensor, the batch in front.
        first = args[0] if args else None
        shape = first.shape if isinstance(first, torch.Tensor) else ()
        if self._fixed:
            self.samples += self._fixed * multiple
        elif shape and (not size or shape[0] == size):
            self.samples += int(shape[0])
        else:
            self.samples += count_samples(args, kwargs, size)

    def close_step(self) -> float:
        """Samples of the step that ends here; the count starts again."""
        samples = self.samples / self.sharers if self.told is None else self.told
        self.samples, self.forwards, self._first_model, self.told = 0, 0, None, None
        return samples
