"""Trains on one batch for ever, so that equal states give equal losses; writes what it sees of its own process."""

import gc
import json
import os

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn

dist.init_process_group(BACKEND)
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
    nn.Linear(128, 10),
).to(DEVICE)  # fmt: skip
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
torch.manual_seed(rank)
x, y = torch.randn(16, 1, 8, 8, device=DEVICE), torch.randint(10, (16,), device=DEVICE)
with open(os.path.join(os.environ["OUT"], f"seen.{rank}"), "w") as file:
    for _ in range(500):
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen = {
            "fused": optimizer.param_groups[0]["fused"],
            "foreach": optimizer.param_groups[0]["foreach"],
            "collects": gc.get_threshold()[0] < 100_000,
            "compiled": model._compiled_call_impl is not None,
            "triton": os.environ.get("TRITON_CACHE_DIR"),
            "children": open(f"/proc/self/task/{os.getpid()}/children").read().split(),  # noqa: SIM115
        }
        file.write(json.dumps(seen) + "\n")
        file.flush()
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
