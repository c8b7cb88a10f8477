"""In the order of transformers' Trainer: an update's batches are fetched before train() is called.

The model begins in eval mode, as from a checkpoint, and is evaluated every few updates and at the end of each epoch.
Each rank writes by whom the training batches of each epoch were read.
"""

import argparse
import contextlib
import itertools
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=5, help="updates between two evaluations")
options = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)


class Rows(Dataset):
    """Each tells who read it."""

    def __len__(self) -> int:
        return 24 * 4 * 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((32,), index / 768), int(get_worker_info() is not None)


def flatten(rows: list) -> tuple[torch.Tensor, list[int]]:
    """Without padding: one row of all."""
    return torch.cat([row for row, _ in rows])[None], [by for _, by in rows]


model = DistributedDataParallel(nn.Linear(32, 32)).eval()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
training = DataLoader(Rows(), 8, collate_fn=flatten)
held = DataLoader(Rows(), 64, collate_fn=flatten)


def evaluate(most: int) -> None:
    model.eval()
    with torch.no_grad():
        for (rows, _), _ in zip(held, range(most), strict=False):
            model.module(rows.view(-1, 32))


read, updates = [], 0
for _ in range(options.epochs):
    iterator, by = iter(training), []
    while batches := list(itertools.islice(iterator, 4)):
        for part, (rows, workers) in enumerate(batches):
            model.train()
            by += workers
            with contextlib.nullcontext() if part == 3 else model.no_sync():
                (model(rows.view(-1, 32)).square().mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        if updates % options.every == 0:
            evaluate(3)
    evaluate(100)
    read.append([by.count(1), len(by)])
with open(os.path.join(os.environ["OUT"], f"read.{dist.get_rank()}"), "w") as file:
    json.dump(read, file)
dist.barrier()
dist.destroy_process_group()
