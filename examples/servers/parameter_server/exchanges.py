"""How a trainer gets rows and gives gradients: over servers, over collectives, or each where it is better.

All of them offer `ask`, `exchange` and `collect`; the trainer's loop does not know which one it has.
"""

import argparse
import threading
from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch.futures import Future, collect_all

from . import transport
from .model import Model, build_table
from .placement import Block
from .reduction import Reduction
from .server import Answer, Push, count_bytes


class Asked:
    """Rows that were asked for."""

    def __init__(
        self, ids: torch.Tensor, parts: Sequence[tuple[slice | torch.Tensor, torch.Tensor | Future]]
    ) -> None:
        self._ids, self._parts = ids, parts

    def wait(self) -> torch.Tensor:
        """Return the rows when they are here."""
        found = None
        for mask, part in self._parts:
            rows = (part if isinstance(part, torch.Tensor) else part.wait()).float()
            found = rows.new_empty(len(self._ids), rows.shape[1]) if found is None else found
            found[mask] = rows
        return found


class NodeSum:
    """On the first trainer of a node: adds up what the node's trainers push, and sends one push for all of them."""

    def __init__(self, members: Collection[int], exchange: "Servers") -> None:
        """`members` are the numbers of the node's trainers; `exchange` is that of its first one."""
        self._members, self._exchange = members, exchange
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Push, Future]] = {}

    def add_up(self, *parts: object) -> Future:
        """Take a trainer's push; the answer comes when all trainers of the node have pushed, and servers answered."""
        push, answered = Push(*parts), Future()
        with self._lock:
            self._waiting[push.trainer] = push, answered
            if len(self._waiting) < len(self._members):
                return answered
            pushes = [self._waiting[trainer][0] for trainer in sorted(self._waiting)]
            futures = [future for _, future in self._waiting.values()]
            self._waiting.clear()
        sent = self._exchange.send(merge_pushes(pushes))

        def hand_on(done: Future) -> None:
            for future in futures:
                try:
                    future.set_result(done.value())
                except RuntimeError as error:
                    future.set_exception(error)

        sent.add_done_callback(hand_on)
        return answered


def merge_pushes(pushes: Sequence[Push]) -> Push:
    """Return one push with the sums of all of them."""
    first = pushes[0]
    dense = ids = rows = None
    if first.dense is not None:
        dense = sum((push.dense.float() for push in pushes[1:]), start=first.dense.float()).to(
            first.dense.dtype
        )
    if first.ids is not None:
        ids, places = torch.cat([push.ids for push in pushes]).unique(return_inverse=True)
        summed = torch.zeros(len(ids), first.rows.shape[1])
        summed.index_add_(0, places, torch.cat([push.rows for push in pushes]).float())
        rows = summed.to(first.rows.dtype)
    return Push(first.trainer, len(pushes), first.steps, dense, ids, rows)


class Servers:
    """Everything travels to servers and back; what `--architecture servers` is."""

    def __init__(
        self,
        options: argparse.Namespace,
        number: int,
        model: Model,
        homes: Sequence[tuple[Block, int]],
        leader: int,
        reduction: Reduction,
    ) -> None:
        """`homes` holds each block with its server; `leader` is the trainer that adds up for its node, or `number`."""
        self._options, self._number, self._model, self._leader = options, number, model, leader
        self._reduction = reduction
        self._blocks = [
            [block for block, home in homes if home == server] for server in range(options.servers)
        ]
        self._wire = torch.float16 if options.wire == 16 else torch.float32
        self._base = model.values.clone() if options.mode == "geo" else None
        self._made = self._unpushed = 0
        self.steps = 0
        """Steps that all trainers together have pushed."""
        self.dense_bytes = 0
        """What this trainer has given of everything but rows."""
        self.counted = [(0, 0)] * options.servers
        """Bytes that each server has received and sent, by its own count."""

    # Rows.

    def ask(self, ids: torch.Tensor) -> Asked:
        """Ask for rows, and do not wait for them."""
        if self._model.table is not None:
            return Asked(ids, [(slice(None), self._model.table[ids])])
        parts = self._split(ids)
        calls = [transport.call(f"server{server}", "fetch_rows", ids[mask]) for server, mask in parts]
        return Asked(ids, [(mask, call) for (_, mask), call in zip(parts, calls, strict=True)])

    def _split(self, ids: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        masks = [(server, ids % self._options.servers == server) for server in range(self._options.servers)]
        return [(server, mask) for server, mask in masks if mask.any()]

    # Gradients.

    def exchange(self, ids: torch.Tensor, row_gradients: torch.Tensor) -> bool:
        """Push this step's gradients and wait for the answer; return whether everything was exchanged.

        In geo only rows are pushed between two exchanges, and the trainer changes its own parameters meanwhile.
        """
        model, options = self._model, self._options
        self._made += 1
        self._unpushed += 1
        dense: torch.Tensor | None = model.gradient
        if options.mode == "geo":
            model.values.add_(model.gradient, alpha=-options.learning_rate)
            dense = model.values - self._base if self._made % options.geo_k == 0 else None
        if model.table is None:
            answered = self._push(dense, ids, row_gradients)
        elif dense is not None:
            answered = self._push(dense, None, None)
        else:
            return False
        self._take(answered)
        return dense is not None

    def _push(
        self, dense: torch.Tensor | None, ids: torch.Tensor | None, row_gradients: torch.Tensor | None
    ) -> Future:
        dense, rows = (None if part is None else part.to(self._wire) for part in (dense, row_gradients))
        push = Push(self._number, 1, self._unpushed, dense, ids, rows)
        self._unpushed = 0
        self.dense_bytes += count_bytes(dense)
        if self._options.reduce_in_node:
            return transport.call(f"trainer{self._leader}", "add_up", *push)
        return self.send(push)

    def _take(self, answered: Future) -> None:
        answers = [Answer(*answer) for answer in answered.wait()]
        if answers[0].values is not None:
            for blocks, answer in zip(self._blocks, answers, strict=True):
                self._put(blocks, answer.values.float())
            if self._base is not None:
                self._base.copy_(self._model.values)
        self.steps = answers[0].steps
        self.counted = [(answer.received_bytes, answer.sent_bytes) for answer in answers]

    def _put(self, blocks: Sequence[Block], values: torch.Tensor) -> None:
        begin = 0
        for block in blocks:
            self._model.values[block.start : block.stop] = values[begin : begin + block.elements]
            begin += block.elements

    def send(self, push: Push) -> Future:
        """Send each server its part of a push; return the future of all answers."""
        calls = []
        for server, blocks in enumerate(self._blocks):
            dense = ids = rows = None
            if push.dense is not None:
                pieces = [push.dense[block.start : block.stop] for block in blocks]
                dense = torch.cat(pieces) if pieces else push.dense[:0]
            if push.ids is not None:
                mask = push.ids % self._options.servers == server
                ids, rows = push.ids[mask], push.rows[mask]
            part = push._replace(dense=dense, ids=ids, rows=rows)
            calls.append(transport.call(f"server{server}", "push", *part))
        return collect_all(calls).then(lambda done: [call.wait() for call in done.wait()])

    def collect(self) -> torch.Tensor:
        """Put the servers' values into the model, and return the whole table."""
        for server, blocks in enumerate(self._blocks):
            if blocks:
                self._put(blocks, transport.call(f"server{server}", "fetch_values").wait())
        everything = torch.arange(self._options.rows)
        return self.ask(everything).wait() if self._model.table is None else self._model.table


class Hybrid(Servers):
    """Rows travel to servers and back, everything else is summed up by an allreduce."""

    def exchange(self, ids: torch.Tensor, row_gradients: torch.Tensor) -> bool:
        """Sum up the gradients over all trainers while the rows are under way."""
        self._unpushed += 1
        answered = self._push(None, ids, row_gradients)
        self.dense_bytes += reduce_gradients(self._options, self._model, self._wire, self._reduction)
        self._take(answered)
        return True


class Collective:
    """Every trainer holds everything; rows that were touched are gathered, or the whole table is summed up."""

    def __init__(self, options: argparse.Namespace, model: Model, reduction: Reduction) -> None:
        self._options, self._model, self._reduction = options, model, reduction
        self._wire = torch.float16 if options.wire == 16 else torch.float32
        self._table = build_table(options) if model.table is None else model.table
        self.steps = self.dense_bytes = 0
        self.counted: list[tuple[int, int]] = []

    def ask(self, ids: torch.Tensor) -> Asked:
        """Return the rows, which are here."""
        return Asked(ids, [(slice(None), self._table[ids])])

    def exchange(self, ids: torch.Tensor, row_gradients: torch.Tensor) -> bool:
        """Sum up the gradients over all trainers."""
        options = self._options
        self.dense_bytes += reduce_gradients(options, self._model, self._wire, self._reduction)
        if self._model.table is None:
            ids, rows = gather_rows(ids, row_gradients.to(self._wire), options.trainers)
            self._table.index_add_(0, ids, rows.float() / options.trainers, alpha=-options.learning_rate)
        self.steps += options.trainers
        return True

    def collect(self) -> torch.Tensor:
        """Return the whole table."""
        return self._table


def reduce_gradients(
    options: argparse.Namespace, model: Model, wire: torch.dtype, reduction: Reduction
) -> int:
    """Step with the mean of all trainers' gradients; return the bytes that one of them gave."""
    total = model.gradient.to(wire)
    reduction.add_up(total)
    model.values.add_(total.float() * (1 / options.trainers), alpha=-options.learning_rate)
    return count_bytes(total)


def gather_rows(ids: torch.Tensor, rows: torch.Tensor, trainers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and rows of all trainers one behind the other; each may have another number of them."""
    counts = [torch.zeros(1, dtype=torch.long) for _ in range(trainers)]
    dist.all_gather(counts, torch.tensor([len(ids)]))
    most = max(int(count) for count in counts)
    found = []
    for part in (ids, rows):
        padded = part.new_zeros(most, *part.shape[1:])
        padded[: len(part)] = part
        gathered = [torch.empty_like(padded) for _ in range(trainers)]
        dist.all_gather(gathered, padded)
        found.append(torch.cat([one[: int(count)] for one, count in zip(gathered, counts, strict=True)]))
    return found[0], found[1]
