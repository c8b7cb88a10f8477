"""DistributedDataParallel with four batches to each optimizer step, whose gradients are sent after every one of them.

torchrun --nproc-per-node 2 ddp_accumulation.py --steps 200
"""

import argparse

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATED = 4

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0, help="0: without an end")
asked = parser.parse_args()

distributed.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
made = torch.Generator().manual_seed(distributed.get_rank())
step = 0
while not asked.steps or step < asked.steps:
    for _ in range(ACCUMULATED):
        rows = torch.randn(16, 256, generator=made)
        labels = torch.randint(0, 10, (16,), generator=made)
        (nn.functional.cross_entropy(model(rows), labels) / ACCUMULATED).backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
distributed.destroy_process_group()
