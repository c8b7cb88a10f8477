"""DDP training that waits for its samples: dropout and shuffling draw from the same random numbers as the loader."""

import argparse
import hashlib
import multiprocessing
import os
import time

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=100)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--sleep", type=float, default=0.002, help="seconds per sample")
parser.add_argument(
    "--no-children", action="store_true", help="samples cannot be read outside the rank's process"
)
parser.add_argument("--iterable", action="store_true")
parser.add_argument("--unbatched", action="store_true", help="the loader hands over single samples")
arguments = parser.parse_args()
RANK_PROCESS = os.getpid()


class Samples(Dataset):
    def __len__(self):
        return arguments.samples

    def __getitem__(self, index):
        if arguments.no_children and os.getpid() != RANK_PROCESS:
            raise OSError("the archive is open in another process")
        time.sleep(arguments.sleep)
        return torch.full((8,), float(index)).sin(), index


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return ((torch.full((8,), float(index)).sin(), index) for index in range(arguments.samples))


def write(what, text):
    with open(os.path.join(os.environ["OUT"], f"{what}.{dist.get_rank()}"), "a") as file:
        file.write(text + "\n")


def main():
    dist.init_process_group(BACKEND)
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    loader = DataLoader(
        Stream() if arguments.iterable else Samples(),
        batch_size=None if arguments.unbatched else 4,
        shuffle=None if arguments.iterable else True,
        num_workers=arguments.workers,
        persistent_workers=arguments.persistent,
    )
    for _ in range(arguments.epochs):
        for x, index in loader:
            loss = ddp(x.to(DEVICE)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            write("batches", f"{torch.as_tensor(index).tolist()} {loss.item()!r} {torch.rand(1).item()!r}")
            write("workers", str(len(multiprocessing.active_children())))
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    write("batches", hashlib.sha256(weights).hexdigest())
    dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
