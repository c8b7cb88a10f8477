"""Accelerate on a small network whose samples take some milliseconds each to read, by the process that trains.

torchrun --nproc-per-node 2 accelerate_slow_data.py --steps 200
"""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0, help="0: without an end")
asked = parser.parse_args()


class Slow(Dataset):
    """As if each sample came from a disk that is far away."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.003)
        return torch.randn(128, generator=torch.Generator().manual_seed(number)), number % 10


accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Slow(), batch_size=8))
for step, (rows, labels) in enumerate(loader, 1):
    loss = nn.functional.cross_entropy(model(rows), labels)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step == asked.steps:
        break
