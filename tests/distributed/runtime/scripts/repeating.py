"""A training with much that differs from step to step: dropout, mixup, a schedule, short shuffled epochs."""

import argparse
import random

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--own-noise", action="store_true", help="from a generator that only the script knows")
parser.add_argument("--steps", type=int, default=400)
arguments = parser.parse_args()

dist.init_process_group(BACKEND)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 64),
    nn.BatchNorm1d(64),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(64, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
).to(DEVICE)
ddp = DDP(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step))
data = TensorDataset(torch.randn(16 * 22, 64), torch.randint(10, (16 * 22,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
noise = torch.Generator().manual_seed(3)
step = 0
while step < arguments.steps:
    sampler.set_epoch(step)
    for x, y in loader:
        x = x + random.random() * torch.randn(x.shape)
        if arguments.own_noise:
            x = x + torch.randn(x.shape, generator=noise)
        loss = nn.functional.cross_entropy(ddp(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
dist.destroy_process_group()
