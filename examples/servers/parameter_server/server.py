"""One parameter server: its blocks of the variables, its rows of the table, and what pushes do to them."""

import argparse
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.futures import Future

from .model import Model, build_table
from .placement import Block


class Push(NamedTuple):
    """What one trainer, or the first trainer of a node for all of them, sends to one server."""

    trainer: int
    trainers: int
    """Trainers whose gradients are added up in it."""
    steps: int
    """Steps that each of them has made since its last push."""
    dense: torch.Tensor | None
    """Gradients of the server's blocks, in geo what the trainer changed them by; None where only rows travel."""
    ids: torch.Tensor | None
    rows: torch.Tensor | None
    """Gradients of the rows `ids`."""


class Answer(NamedTuple):
    """What a push is answered with."""

    values: torch.Tensor | None
    """The server's blocks as they are now."""
    steps: int
    """Steps that all trainers together have pushed so far."""
    received_bytes: int
    sent_bytes: int
    """Of all tensors since the server began."""


class Server:
    """Its methods are called from the threads of the transport."""

    def __init__(self, options: argparse.Namespace, number: int, blocks: Sequence[Block]) -> None:
        self._options, self._number = options, number
        self._wire = torch.float16 if options.wire == 16 else torch.float32
        model = Model(options)
        pieces = [model.values[block.start : block.stop] for block in blocks]
        self._values = torch.cat(pieces) if pieces else torch.empty(0)
        self._rows = None
        if options.table == "rows":
            self._rows = build_table(options)[number :: options.servers].clone()
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Push, Future]] = {}
        self._steps = self._received = self._sent = 0
        self._finished = threading.Event()

    def fetch_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows as they are now."""
        with self._lock:
            found = self._rows[ids // self._options.servers].to(self._wire)
            self._received += count_bytes(ids)
            self._sent += count_bytes(found)
        return found

    def fetch_values(self) -> torch.Tensor:
        """Return all blocks as they are now."""
        with self._lock:
            return self._values.clone()

    def push(self, *parts: object) -> Future:
        """Take a push; in sync the answer comes when all trainers have pushed, else at once."""
        push, answered = Push(*parts), Future()
        with self._lock:
            self._received += sum(count_bytes(part) for part in (push.dense, push.ids, push.rows))
            self._steps += push.steps * push.trainers
            if self._options.mode != "sync":
                self._apply([push])
                answers = [(answered, self._answer([push]))]
            else:
                self._waiting[push.trainer] = push, answered
                pushes = [self._waiting[trainer][0] for trainer in sorted(self._waiting)]
                if sum(waiting.trainers for waiting in pushes) < self._options.trainers:
                    return answered
                # Always added up in the same order: the same seed then gives the same numbers.
                self._apply(pushes)
                answer = self._answer(pushes)
                answers = [(future, answer) for _, future in self._waiting.values()]
                self._waiting.clear()
        for future, answer in answers:
            future.set_result(tuple(answer))
        return answered

    def finish(self) -> None:
        """No more will be asked."""
        self._finished.set()

    def wait(self) -> None:
        """Return when no more will be asked."""
        self._finished.wait()

    def _apply(self, pushes: Sequence[Push]) -> None:
        """Step with the mean of all trainers' gradients; in async with each as it comes."""
        rate = self._options.learning_rate
        share = 1.0 if self._options.mode == "async" else 1 / self._options.trainers
        dense = [push.dense.float() for push in pushes if push.dense is not None]
        if dense:
            # A trainer of geo has stepped by itself, and sends what that changed.
            factor = 1.0 if self._options.mode == "geo" else -rate
            self._values.add_(sum(dense[1:], start=dense[0]) * share, alpha=factor)
        for push in pushes:
            if push.ids is not None:
                places = push.ids // self._options.servers
                self._rows.index_add_(0, places, push.rows.float() * share, alpha=-rate)

    def _answer(self, pushes: Sequence[Push]) -> Answer:
        values = None if pushes[0].dense is None else self._values.to(self._wire, copy=True)
        self._sent += count_bytes(values) * len(pushes)
        return Answer(values, self._steps, self._received, self._sent)


def count_bytes(tensor: torch.Tensor | None) -> int:
    """Return the bytes of a tensor's numbers."""
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
