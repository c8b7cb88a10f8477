"""Builds DistributedDataParallel but updates the weights by hand."""

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE

dist.init_process_group(BACKEND)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(DEVICE))
for _ in range(10):
    net(torch.randn(2, 8, device=DEVICE)).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
