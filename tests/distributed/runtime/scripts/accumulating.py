"""Accumulates four micro-batches, fewer at the end of an epoch; `--by-hand` exchanges the last one of a step only."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--by-hand", action="store_true")
parser.add_argument("--clips-each", action="store_true")
parser.add_argument("--find-unused", action="store_true")
parser.add_argument("--epochs", type=int, default=4)
arguments = parser.parse_args()
BATCHES = 42
dist.init_process_group(BACKEND)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)
model = DDP(net, find_unused_parameters=arguments.find_unused)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler(DEVICE.type, init_scale=256.0)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(arguments.epochs):
    for place in range(BATCHES):
        ends = place % 4 == 3 or place == BATCHES - 1
        x, y = torch.randn(8, 8, generator=generator), torch.randint(4, (8,), generator=generator)
        with model.no_sync() if arguments.by_hand and not ends else contextlib.nullcontext():
            scaler.scale(nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE)) / 4).backward()
        if arguments.clips_each:
            nn.utils.clip_grad_norm_(net.parameters(), 100.0)
        if ends:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.2)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
torch.save(
    [p.detach().cpu() for p in net.parameters()],
    os.path.join(os.environ["OUT"], f"weights.{dist.get_rank()}"),
)
dist.barrier()
dist.destroy_process_group()
