"""A rank that starts other Python processes, one of which joins a process group of its own and trains."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

HELPER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(20):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("helper trained")
"""


class Rows(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return torch.full((8,), float("fleet_advisor_runtime.inject.patches" in sys.modules))


def main():
    dist.init_process_group(BACKEND)
    net = DistributedDataParallel(torch.nn.Linear(8, 8).to(DEVICE))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    subprocess.run([sys.executable, "-c", HELPER], check=True)
    # With this context the workers are new interpreters.
    loader = DataLoader(Rows(), 4, num_workers=1, multiprocessing_context="spawn")
    for rows in loader:
        assert not rows.any(), "a loader worker was patched"
        net(rows.to(DEVICE)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with open(os.path.join(os.environ["OUT"], f"ended.{dist.get_rank()}"), "w") as file:
        file.write("by itself")
    dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
