"""An accelerate script; it counts its own samples per second."""

import os
import time

import torch
from accelerate import Accelerator
from placement import DEVICE
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=DEVICE.type == "cpu")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[m for _ in range(4) for m in (torch.nn.Linear(128, 128), torch.nn.ReLU())], torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(8000, 128), torch.randint(10, (8000,))), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    file = open(os.path.join(os.environ["OUT"], f"count.{accelerator.process_index}"), "w")  # noqa: SIM115
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            file.write(f"{time.perf_counter()} {len(x) * accelerator.num_processes}\n")
            file.flush()


if __name__ == "__main__":
    main()
