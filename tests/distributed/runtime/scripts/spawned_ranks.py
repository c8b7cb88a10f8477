"""Starts its own ranks with torch.multiprocessing.spawn; each is given its place as an argument, not a variable."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def train(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(40):
        net(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(train, args=(int(sys.argv[1]),), nprocs=2)
