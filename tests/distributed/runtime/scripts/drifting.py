"""A model becomes another one on each rank in step 40, by the script's own doing; frozen layers thaw in step 20.

With --apart from the first step on. Tells at the end how far the ranks are apart.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

backend = os.environ.get("FLEET_TEST_BACKEND", "gloo")
dist.init_process_group(backend)
rank, apart, steps = dist.get_rank(), "--apart" in sys.argv, 90
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
model = DistributedDataParallel(net, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
net[:2].requires_grad_(False)
torch.manual_seed(rank + 1)
for step in range(steps):
    if step == 20:
        net[:2].requires_grad_(True)
    if "--steady" not in sys.argv and step == (1 if apart else 40):
        with torch.no_grad():
            net[1].weight.add_(rank)
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
own = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
first = own.clone()
dist.broadcast(first, 0)
if rank == 1:
    print(f"apart by {float((own - first).abs().max()):.3f}", flush=True)
dist.destroy_process_group()
