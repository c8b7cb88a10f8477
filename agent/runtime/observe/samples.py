"""Counts how many samples a step consumed, from what the loader gave, else from the model's inputs."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from ..untraced import untraced
from .tensors import find_tensors, read_shape

MOST_WAITING = 256
"""Batches of one loader that are remembered until a forward takes them up."""
MOST_WEIGHED = 8
"""Steps of which the numbers that the model was given are counted."""


@untraced
def count_samples(args: Any, kwargs: Any, loader_batch_size: Optional[int]) -> int:
    """Samples in one forward: dimension 0 of the first tensor, unless another dimension alone is the loader's batch."""
    for source in (args, kwargs):
        for tensor in find_tensors(source):
            shape = read_shape(tensor)
            if not shape:
                continue
            if loader_batch_size and loader_batch_size in shape and shape[0] != loader_batch_size:
                return loader_batch_size
            return shape[0]
    return 0


@untraced
def count_numbers(args: Any, kwargs: Any) -> int:
    """Numbers in all tensors that a forward is given."""
    return sum(math.prod(read_shape(tensor)) for source in (args, kwargs) for tensor in find_tensors(source))


class SampleCount:
    """Adds up a step's samples: a sample is what the script's loader calls one.

    A fetched batch counts at the forward that takes it up, in the order of fetching and once: a discriminator that sees
    the same batch three times, or a loss that computes it in parts, did not consume three batches. How many samples it
    is made of its index batch tells, whatever the model is given of it (a padding-free row of tokens, both answers of a
    pair, a graph's nodes); else the loader's batch size. Only forwards of the step's first model count. Where nothing
    is fetched they count by their inputs.
    """

    def __init__(self, fixed: Optional[int]) -> None:
        self._fixed = fixed
        self._fetched: Dict[int, Deque[Optional[int]]] = {}
        """By loader, the sizes of the batches that no forward has taken up; None for an unknown one."""
        self._first_model: Optional[int] = None
        self.loader_batch_size: Optional[int] = None
        self._has_rows = False
        """Whether a full batch was seen to have as many rows: then fewer rows are a batch that is not full."""
        self.sharers = 1
        """Ranks that are given the same samples, so that each counts its share of them."""
        self.samples = 0
        self.forwards = 0
        self.told: Optional[int] = None
        """What the script itself says it consumed in this step."""
        self.has_told = False
        """Whether it ever said so."""
        self.on_given: Optional[Callable[[Any, Any], None]] = None
        """Hears what each forward that counts is given."""
        self._numbers = 0
        self._weighed: List[int] = []
        """Numbers that the model was given in each of the first steps."""
        self._ranks = 0
        """That share a step, where steps are counted."""
        self._multiple = 1

    def count_steps(self, ranks: int) -> None:
        """No rank finds samples to count: all ranks together count one for each step of the script's own."""
        self._ranks = ranks

    @property
    def unit(self) -> str:
        """What a second's training is told in."""
        return "steps/s" if self._ranks else "samples/s"

    def note_fetch(self, loader: int, size: Optional[int]) -> None:
        """Training has read a batch of so many samples from this loader."""
        waiting = self._fetched.get(loader)
        if waiting is None:
            waiting = self._fetched[loader] = deque(maxlen=MOST_WAITING)
        waiting.append(size)

    def note_forward(self, model: int, args: Any, kwargs: Any, multiple: int = 1) -> None:
        """`multiple` of the script's batches were read as one."""
        self._multiple = multiple
        if self._first_model is None:
            self._first_model = model
        elif model != self._first_model:
            return
        taken = [waiting.popleft() for waiting in self._fetched.values() if waiting]
        if not taken and self._fetched and self.samples > 0:
            return
        self.forwards += 1
        if len(self._weighed) < MOST_WEIGHED:
            self._numbers += count_numbers(args, kwargs)
        if self.on_given is not None:
            self.on_given(args, kwargs)
        if self._fixed:
            self.samples += self._fixed * multiple
        elif taken:
            self.samples += sum(
                self._count_fetched(args, kwargs, multiple) if size is None else size for size in taken
            )
        else:
            size = self.loader_batch_size
            self.samples += count_samples(args, kwargs, size and size * multiple)

    def _count_fetched(self, args: Any, kwargs: Any, multiple: int) -> int:
        """Samples of a batch of which only the usual size is known."""
        size = self.loader_batch_size
        if size is None:
            return count_samples(args, kwargs, None)
        rows, full = count_samples(args, kwargs, None), size * multiple
        self._has_rows = self._has_rows or rows == full
        return rows if self._has_rows and 0 < rows < full else full

    @property
    def numbers_per_step(self) -> float:
        """Numbers that the model was given in one of the first steps; 0 before there was one."""
        return float(statistics.median(self._weighed)) if self._weighed else 0.0

    def close_step(self) -> float:
        """Samples of the step that ends here; the count starts again."""
        samples = self.samples / self.sharers if self.told is None else self.told
        if self._ranks:
            samples = self._multiple / self._ranks
        self.has_told = self.has_told or self.told is not None
        if len(self._weighed) < MOST_WEIGHED:
            self._weighed.append(self._numbers)
        self._numbers = 0
        self.samples, self.forwards, self._first_model, self.told = 0, 0, None, None
        return samples
