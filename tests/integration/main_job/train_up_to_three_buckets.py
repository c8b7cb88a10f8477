"""A user's script that cannot train with more than three buckets."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)), nn.Linear(128, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def look_at_buckets() -> None:
    buckets = model._get_ddp_logging_data().get("rebuilt_bucket_sizes", "").split(",")
    if len(buckets) > 3:
        raise ValueError(f"this training cannot do with {len(buckets)} buckets")


for _ in range(100_000):
    x, y = torch.randn(32, 128), torch.randint(10, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    time.sleep(0.005)  # a whole job lasts two minutes: the tests beside it have the processors
    optimizer.step()
    look_at_buckets()
