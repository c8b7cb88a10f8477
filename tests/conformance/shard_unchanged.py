"""Trains a sharded model with the exported file in argv where there is one: what its collectives are like."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from train_unchanged import load_module


class Collectives(TorchDispatchMode):
    """Counts those that gather parameters, and looks at those that reduce gradients."""

    def __init__(self):
        super().__init__()
        self.gathers, self.over, self.formats, self.shared, self.order = 0, set(), set(), set(), ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "allgather" in str(func):
            self.gathers += 1
            self.over.add(args[0].numel() // args[1].numel())
            self.own = dist.ProcessGroup.unbox(args[2]).group_name
            self.order += "g"
        elif "reduce_scatter" in str(func):
            self.formats.add(str(args[0].dtype))
            self.shared.add(dist.ProcessGroup.unbox(args[2]).group_name == self.own)
        elif "mm" in str(func):
            self.order += "m"
        return func(*args, **(kwargs or {}))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)))
    strategy = load_module(sys.argv[1]) if len(sys.argv) > 1 else None
    arguments = getattr(strategy, "shard_arguments", lambda outermost=False: {})
    for layer in model:
        fully_shard(layer, **arguments())
    fully_shard(model, **arguments(outermost=True))
    if strategy is not None:
        strategy.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Collectives() as seen:
        for _ in range(3):
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    total = sum(parameter.full_tensor().double().sum().item() for parameter in model.parameters())
    if dist.get_rank() == 0:
        report = {
            "gathers_per_step": seen.gathers / 3, "sum": total, "threads": torch.get_num_threads(),
            "most_ahead": max(map(len, seen.order.split("m"))), "over": sorted(seen.over),
            "formats": sorted(seen.formats), "shared": sorted(seen.shared),
        }  # fmt: skip
        sys.stdout.write(f"REPORT {json.dumps(report)}\n")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
