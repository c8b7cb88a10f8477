"""One process trains, with no process group: a model that is called as a whole, or (--in-parts) a container whose parts
are. With --group in a group of its own, of which it is the only rank."""

import sys

import torch
from placement import BACKEND, DEVICE
from torch.utils.data import DataLoader, TensorDataset


class Container(torch.nn.Module):
    """As LightningModule, which is never called: its methods call what is in it."""

    def __init__(self):
        super().__init__()
        self.encode = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU())
        self.decode = torch.nn.Linear(32, 4)

    def forward(self, rows):
        return self.decode(self.encode(rows))

    def compute_output(self, rows):
        return self.decode(self.encode(rows))


def main():
    if "--group" in sys.argv:
        torch.distributed.init_process_group(
            BACKEND, store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    torch.manual_seed(0)
    net = Container().to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, foreach=False)
    loader = DataLoader(TensorDataset(torch.randn(3000, 8)), 6)
    call = net.compute_output if "--in-parts" in sys.argv else net
    for place, (rows,) in enumerate(loader):
        (call(rows.to(DEVICE)).square().mean() / 2).backward()
        if place % 2:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
