"""Updates its weights by hand, so that the script itself says where a step ends and what it consumed."""

import fleet_advisor
import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE

fleet_advisor.start()
dist.init_process_group(BACKEND)
net = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 8)).to(DEVICE)
)
for _ in range(60):
    for _ in range(2):  # two forwards of one step, whose rows are no samples
        net(torch.randn(6, 8, device=DEVICE)).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.001 * parameter.grad
            parameter.grad = None
    fleet_advisor.end_step(samples=5)
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
