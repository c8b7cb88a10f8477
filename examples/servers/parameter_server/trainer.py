"""A trainer's loop, and what the first trainer tells of it."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch
import torch.distributed as dist

from . import transport
from .exchanges import Collective, Hybrid, NodeSum, Servers
from .model import Batches, Model
from .options import list_idle
from .placement import Block, choose_servers, cut_into_blocks, find_largest_share, lay_out_nodes
from .reduction import Reduction
from .server import Server

_PRACTICE = 9
"""Steps that are only computed, before the first one."""
_TIMES = ("compute_s", "lookup_s", "exchange_s")


def place_blocks(options: argparse.Namespace, model: Model) -> list[tuple[Block, int]]:
    """Return each block with its server; none where no server holds blocks."""
    if options.architecture != "servers":
        return []
    blocks = cut_into_blocks(model.variables, options.servers, options.min_block)
    return list(zip(blocks, choose_servers(blocks, options.servers, options.placement), strict=True))


def serve(options: argparse.Namespace, number: int, stores: Sequence[str]) -> None:
    """Be a server until all trainers have finished."""
    torch.set_num_threads(1)
    homes = place_blocks(options, Model(options))
    server = Server(options, number, [block for block, home in homes if home == number])
    members = options.trainers + options.servers
    transport.connect(f"server{number}", options.trainers + number, members, stores[0], options, server)
    server.wait()
    transport.leave()


def train(options: argparse.Namespace, number: int, stores: Sequence[str]) -> None:
    """Be a trainer until all steps are done."""
    torch.set_num_threads(1)
    model = Model(options)
    nodes, _ = lay_out_nodes(
        options.trainers, options.servers, options.nodes, options.trainer_nodes, options.place
    )
    mates = [trainer for trainer, node in enumerate(nodes) if node == nodes[number]]
    reduction = Reduction(nodes, number, bool(options.reduce_in_node))
    has_servers = options.architecture != "collective"
    if has_servers:
        kind = Hybrid if options.architecture == "hybrid" else Servers
        exchange = kind(options, number, model, place_blocks(options, model), mates[0], reduction)
        node_sum = NodeSum(mates, exchange)
        members = options.trainers + options.servers
        transport.connect(f"trainer{number}", number, members, stores[0], options, node_sum)
    else:
        exchange = Collective(options, model, reduction)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{stores[1]}", rank=number, world_size=options.trainers
    )
    dist.barrier()
    lines = Lines(options, model) if number == 0 else None
    batches = Batches(options, number)
    _loop(options, number, model, batches, exchange, lines)
    # A trainer that others still wait for must not leave.
    dist.barrier()
    if number == 0:
        if options.save:
            table = exchange.collect()
            steps = batches.first + options.steps
            torch.save({"values": model.values, "table": table, "steps": steps}, options.save)
        if has_servers:
            for server in range(options.servers):
                transport.call(f"server{server}", "finish").wait()
    dist.barrier()
    if has_servers:
        transport.leave()


def _loop(
    options: argparse.Namespace,
    number: int,
    model: Model,
    batches: Batches,
    exchange: Servers | Collective,
    lines: "Lines | None",
) -> None:
    step = 0
    late_s = _read_lateness(options, number)
    ids, places, labels = batches.draw(0)
    asked = None
    is_whole = True
    while not is_whole or exchange.steps < options.steps * options.trainers:
        begin = time.perf_counter()
        rows = (asked or exchange.ask(ids)).wait()
        looked_up = time.perf_counter()
        following = batches.draw(step + 1)
        asked = exchange.ask(following[0]) if options.prefetch else None
        loss, row_gradients = model.learn(rows, ids, places, labels)
        time.sleep(late_s)
        computed = time.perf_counter()
        is_whole = exchange.exchange(ids, row_gradients)
        if lines is not None:
            own = Own(loss, computed - looked_up, looked_up - begin, time.perf_counter() - computed, len(ids))
            lines.tell(own, exchange if is_whole else None)
        step += 1
        ids, places, labels = following
    if asked is not None:
        asked.wait()


def _practise(options: argparse.Namespace, model: Model) -> float:
    """Return the median seconds that the first trainer computes in a step; nothing of what it learns is kept."""
    ids, places, labels = Batches(options, 0).draw(0)
    took_s = []
    for _ in range(_PRACTICE):
        begin = time.perf_counter()
        model.learn(torch.zeros(len(ids), options.width), ids, places, labels)
        took_s.append(time.perf_counter() - begin)
    return median(took_s) + _read_lateness(options, 0)


def _read_lateness(options: argparse.Namespace, number: int) -> float:
    """Return by how many seconds this trainer is late in each step."""
    rank, _, milliseconds = options.slow_trainer.partition(":")
    return float(milliseconds) / 1e3 if rank == str(number) else 0.0


@dataclass(frozen=True)
class Own:
    """A step of the trainer's own."""

    loss: float
    compute_s: float
    """Forward, backward, and what a slow trainer is late."""
    lookup_s: float
    """Waiting for rows."""
    exchange_s: float
    """Waiting for servers, or for an allreduce."""
    rows_touched: int
    """Different rows of the batch."""


class Lines:
    """A line for every `trainers x batch` samples that all trainers together have learnt, whoever was how fast.

    Where several of them pass between two exchanges, they share the time and the bytes evenly: each line then stands
    for equally many samples, and any stretch of lines holds its part of an exchange.
    """

    def __init__(self, options: argparse.Namespace, model: Model) -> None:
        self._options, self._model = options, model
        self._told, self._since = 0, time.perf_counter()
        self._steps: list[Own] = []
        self._counted, self._dense_bytes = [(0, 0)] * options.servers, 0
        self._placement = _describe_placement(options, model)
        self._compute_s = _practise(options, model)

    def tell(self, own: Own, exchange: Servers | Collective | None) -> None:
        """Note a step of the trainer's own; `exchange` is None between two exchanges."""
        self._steps.append(own)
        if exchange is None:
            return
        passed = min(exchange.steps // self._options.trainers, self._options.steps) - self._told
        if passed < 1:
            return
        now, steps = time.perf_counter(), self._steps
        counts = list(zip(exchange.counted, self._counted, strict=False))
        touched = round(fmean(step.rows_touched for step in steps))
        details = {
            "step_time_s": (now - self._since) / passed,
            "samples": self._options.trainers * self._options.batch,
            **{name: fmean(getattr(step, name) for step in steps) for name in _TIMES},
            **self._placement,
            "received_bytes": [(new[0] - old[0]) // passed for new, old in counts],
            "sent_bytes": [(new[1] - old[1]) // passed for new, old in counts],
            "dense_bytes": (exchange.dense_bytes - self._dense_bytes) // passed,
            "rows_touched": touched,
            "row_bytes": touched * self._options.width * self._options.wire // 8,
        }
        for line in range(passed):
            first = min(line * len(steps) // passed, len(steps) - 1)
            mine = steps[first : max(first + 1, (line + 1) * len(steps) // passed)]
            self._told += 1
            if self._told == min(2, self._options.steps):
                self._print_facts()
            self._print({"step": self._told, "loss": fmean(step.loss for step in mine), **details})
        self._since, self._steps = now, []
        self._counted, self._dense_bytes = exchange.counted, exchange.dense_bytes

    def _print_facts(self) -> None:
        options, variables = self._options, self._model.variables
        of_trainers, of_servers = lay_out_nodes(
            options.trainers, options.servers, options.nodes, options.trainer_nodes, options.place
        )
        drawn = [len(Batches(options, 0).draw(step)[0]) for step in range(10)]
        named = (
            "architecture", "servers", "place", "placement", "min_block", "mode", "geo_k", "table", "wire", "prefetch",
            "reduce_in_node", "rpc_threads", "batch",
        )  # fmt: skip
        about = {name: getattr(options, name) for name in named} | {
            "variables": [[variable.name, variable.elements, variable.row] for variable in variables],
            "table_rows": options.rows,
            "table_width": options.width,
            "rows_per_step": sum(drawn) / len(drawn),
            "trainer_nodes": of_trainers,
            "server_nodes": of_servers if options.architecture != "collective" else [],
            "compute_s": self._compute_s,
        }
        facts = {
            "world_size": options.trainers, "local_world_size": of_trainers.count(0), "nodes": options.nodes,
            "device": "cpu", "batch_size_per_rank": options.batch,
            "gradient_bytes": self._model.values.numel() * 4, "parameter_tensors": len(variables),
            "sparse_gradients": options.table == "rows", "torch_version": torch.__version__,
            "parameter_servers": about,
        }  # fmt: skip
        self._print({"facts": facts, "no_effect": list_idle(options)})

    def _print(self, line: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _describe_placement(options: argparse.Namespace, model: Model) -> dict[str, object]:
    homes = place_blocks(options, model)
    servers = options.servers if options.architecture != "collective" else 0
    share = find_largest_share([block for block, _ in homes], [home for _, home in homes], max(1, servers))
    return {"servers": servers, "blocks": len(homes), "largest_share": round(share, 4)}
