"""Trains a sharded model, after `apply(model)` of the exported file in argv where there is one; counts its gathers."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from train_unchanged import load_module


class Gathers(TorchDispatchMode):
    """Counts the collectives that gather parameters."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "allgather" in str(func) or "all_gather_into" in str(func)
        return func(*args, **(kwargs or {}))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    if len(sys.argv) > 1:
        load_module(sys.argv[1]).apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Gathers() as seen:
        for _ in range(3):
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    total = sum(parameter.full_tensor().double().sum().item() for parameter in model.parameters())
    if dist.get_rank() == 0:
        report = {"gathers_per_step": seen.count / 3, "sum": total, "threads": torch.get_num_threads()}
        sys.stdout.write(f"REPORT {json.dumps(report)}\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
