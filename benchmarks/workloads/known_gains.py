"""Trainings whose gain under one knob shows when each strategy runs alone, and is easily mistaken in a race.

    torchrun --nproc-per-node 2 benchmarks/workloads/known_gains.py threads|waits|loader|prefetcher [--steady 0.02]

A DistributedDataParallel training of a small network. `threads` computes with two threads a rank, which two ranks on
two cores get in each other's way with; `num_threads` = 1 is the faster strategy. In the other cases a forward waits
`--wait` seconds longer while the baseline's Python collector is on (`num_iteration_per_drop_scope` is the faster
strategy), after `--steady` seconds in any case. `loader` reads its batches from a DataLoader whose `--workers` take
`--read` seconds for each, and keep eight batches ahead; `prefetcher` from a thread with a queue of eight, which nobody
but the script knows of. What waits does not compute, so that the truth is the same on every machine.
"""

import argparse
import gc
import queue
import threading
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

_LATE = 100_000
"""New objects for which Python's collector waits while the knob is in force."""
_AHEAD = 8


class Waiting(nn.Module):
    """Takes time and no processor."""

    def __init__(self, steady_s: float, wait_s: float) -> None:
        super().__init__()
        self.steady_s, self.wait_s = steady_s, wait_s

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Wait; longer while the baseline's collector is on."""
        seconds = self.steady_s + (self.wait_s if gc.get_threshold()[0] < _LATE else 0.0)
        if seconds:
            time.sleep(seconds)
        return batch


class Reading(Dataset[torch.Tensor]):
    """Batches that take their time."""

    def __init__(self, batch: torch.Tensor, read_s: float) -> None:
        self.batch, self.read_s = batch, read_s

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.read_s)
        return self.batch


def read_ahead(batch: torch.Tensor, read_s: float) -> Iterator[torch.Tensor]:
    """Yield batches that a thread of the script's own reads into a queue."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(_AHEAD)

    def fill() -> None:
        while True:
            time.sleep(read_s)
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("case", choices=("threads", "waits", "loader", "prefetcher"))
    parser.add_argument("--steady", type=float, default=0.0)
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--read", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(2 if arguments.case == "threads" else 1)
    torch.manual_seed(0)
    width, batch = arguments.width, torch.randn(arguments.batch, arguments.width)
    net = nn.Sequential(
        Waiting(arguments.steady, arguments.wait),
        *(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gc.collect()
    gc.freeze()
    workers = arguments.workers
    reads: Iterator[torch.Tensor] = iter(lambda: batch, None)
    if arguments.case == "loader":
        data = Reading(batch, arguments.read * workers)
        reads = iter(
            DataLoader(data, batch_size=None, num_workers=workers, prefetch_factor=_AHEAD // workers)
        )
    elif arguments.case == "prefetcher":
        reads = read_ahead(batch, arguments.read)
    for read in reads:
        optimizer.zero_grad()
        model(read).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
