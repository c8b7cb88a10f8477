"""Trains without DistributedDataParallel, with --in-a-group in a process group, with --by-hand averaging over it, with
--long for 90 steps, with --bare of tensors that no module holds; a forked child ends before."""

import os
import sys

import torch

if os.fork() == 0:
    sys.exit(0)
os.wait()
if "--in-a-group" in sys.argv:
    torch.distributed.init_process_group("gloo")
net = torch.nn.Linear(4, 1)
bare = [parameter.detach().clone().requires_grad_() for parameter in net.parameters()]
is_bare = "--bare" in sys.argv
optimizer = torch.optim.SGD(bare if is_bare else net.parameters(), lr=0.1)
for _ in range(90 if "--long" in sys.argv else 5):
    optimizer.zero_grad()
    rows = torch.randn(2, 4)
    (torch.nn.functional.linear(rows, *bare) if is_bare else net(rows)).sum().backward()
    for parameter in net.parameters() if "--by-hand" in sys.argv else ():
        torch.distributed.all_reduce(parameter.grad)
    optimizer.step()
