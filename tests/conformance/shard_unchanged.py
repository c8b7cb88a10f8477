"""An ordinary script with a sharded model, which knows nothing of the advisor: how often it gathers its parameters."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

STEPS, COUNTED = 30, 3


class Gathers(TorchDispatchMode):
    """Counts the collectives that gather parameters."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "allgather" in str(func)
        return func(*args, **(kwargs or {}))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(STEPS - COUNTED)
    with Gathers() as seen:
        train(COUNTED)
    total = sum(parameter.full_tensor().double().sum().item() for parameter in model.parameters())
    if dist.get_rank() == 0:
        report = {"gathers_per_step": seen.count / COUNTED, "sum": total, "threads": torch.get_num_threads()}
        sys.stdout.write(f"REPORT {json.dumps(report)}\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
