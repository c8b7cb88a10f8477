"""A user's script: plain DDP, saves a checkpoint and a log into its own folder."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
os.makedirs("out", exist_ok=True)
for step in range(100_000):
    x, y = torch.randn(32, 64), torch.randint(10, (32,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    time.sleep(0.005)  # a whole job lasts a minute: the tests beside it have the processors
    optimizer.step()
    if step % 200 == 0 and dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "out/checkpoint.pt")
        with open("out/log.txt", "a") as log:
            log.write(f"{step} {loss.item()}\n")
