"""Which lines of the script call collectives, how often, on how much, and what they take: while a diagnosis looks.

Each call that a step's account counts is noted by the place of its mark, so that its seconds are the account's own.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

from .clock import Clock
from .own_lines import is_own, shorten

MOST_LINES = 20
OWN, SYNCHRONISED_NORM, SHARDED, SPLIT = "own", "sync_batch_norm", "sharded", "split"
"""Whose call it is: the script's, SyncBatchNorm's, a sharded model's or an engine's, or that of layers which DTensor
splits."""
_NORM = os.path.join("torch", "nn", "modules", "_functions.py")
_SHARDED = tuple(
    os.path.join(*words, "")
    for words in (
        ("torch", "distributed", "fsdp"),
        ("deepspeed", "runtime"),
        ("megatron", "core"),
        ("colossalai",),
        ("apex", "parallel"),
    )
)
_SPLIT = (
    os.path.join("torch", "distributed", "tensor", ""),
    os.path.join("torch", "distributed", "_functional_collectives.py"),
)
"""What computes with tensors that are spread over ranks, and waits for their parts."""
_DISTRIBUTED = os.path.join("torch", "distributed", "")
_WRAPPER = "wrapper"
"""What torch puts around the public ones, to log them."""
_WAIT = "wait"
"""Of a call that was made before."""


@dataclass(frozen=True)
class Call:
    """One of them."""

    kind: str
    name: str
    """What the line calls: all_reduce, all_gather_object, wait."""
    line: str
    """The script's own innermost; "" where torch's threads call."""
    is_new: bool
    """Whether it begins a collective; a wait ends one that was begun before."""
    size: int
    """Bytes of the tensors that it was given."""


def describe_call(name: str, given: Any, frame: Any, in_model: bool = False) -> Call:
    """Of the call that this stack makes, of a method of torch's called `name`, inside forward or backward or not."""
    kind, is_new = OWN, name != _WAIT
    size = sum(tensor.numel() * tensor.element_size() for tensor in _find_tensors(given))
    while frame is not None and not is_own(path := frame.f_code.co_filename):
        if _NORM in path:
            kind = SYNCHRONISED_NORM
        elif any(folder in path for folder in _SHARDED):
            kind = SHARDED
        elif in_model and kind == OWN and any(part in path for part in _SPLIT):
            kind = SPLIT
        if _DISTRIBUTED in path and frame.f_code.co_name != _WRAPPER:
            name = frame.f_code.co_name
        frame = frame.f_back
    line = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return Call(kind, name, line, is_new, size)


def _find_tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _find_tensors(one)


class CollectiveCalls:
    """Of one rank: those that its recorder counts, from the moment at which it is put there."""

    def __init__(self) -> None:
        self._known: Dict[int, Tuple[Any, Dict[int, Call]]] = {}
        """By the identity of a step's marks, which is kept alive: the calls by the places of their marks."""

    def note(self, step: Any, name: str, given: Any, in_model: bool) -> None:
        """The last mark of the step is the beginning of this call."""
        call = describe_call(name, given, sys._getframe(2), in_model)
        self._known.setdefault(id(step), (step, {}))[1][len(step.marks) - 1] = call

    def describe(
        self, steps: Sequence[Any], clock: Clock
    ) -> List[Tuple[str, str, str, float, float, int, float]]:
        """Kind, name, line, calls in one step, its seconds in them, bytes of the largest and of all; the clock has
        settled. Those that take longest come first."""
        found: Dict[Tuple[str, str, str], List[float]] = {}
        for step in steps:
            for place, call in self._known.get(id(step), (None, {}))[1].items():
                end = step.marks[place + 1] if place + 1 < len(step.marks) else step.end
                row = found.setdefault((call.kind, call.name, call.line), [0.0, 0.0, 0.0, 0.0])
                row[0] += call.is_new
                row[1] += clock.measure(step.marks[place], end)
                row[2] = max(row[2], call.size)
                row[3] += call.size
        rows = sorted(found.items(), key=lambda item: -item[1][1])[:MOST_LINES]
        return [
            (
                kind,
                name,
                shorten(line),
                calls / len(steps),
                seconds / len(steps),
                int(size),
                sent / len(steps),
            )
            for (kind, name, line), (calls, seconds, size, sent) in rows
        ]
