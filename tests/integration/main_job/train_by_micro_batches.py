"""Trains with options of its own: a micro-batch has a fixed cost, so that one large one is faster than four small."""

import argparse
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--steps", type=int, default=100_000)
asked = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(asked.steps):
    optimizer.zero_grad()
    for part in range(asked.accumulate):
        is_last = part == asked.accumulate - 1
        with nullcontext() if is_last else model.no_sync():
            (model(torch.randn(asked.micro, 64)).square().mean() / asked.accumulate).backward()
        time.sleep(0.01)
    optimizer.step()
dist.destroy_process_group()
