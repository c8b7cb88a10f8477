"""A training whose best options are known: a pass over a micro-batch costs a fixed time, and an engine a factor.

A step of `--micro` m and `--accumulate` k sleeps k * (a + b * m), times the factor of the engine, beside a little real
computation and the exchange of the gradients.
"""

import argparse
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--factor", type=float, default=1.0, help="What the engine's time is multiplied by.")
parser.add_argument("--fixed-ms", type=float, default=6.0)
parser.add_argument("--each-ms", type=float, default=1.0)
parser.add_argument("--most", type=int, default=1_000, help="Micro-batch from which memory does not suffice.")
asked = parser.parse_args()

dist.init_process_group("gloo")
if asked.micro > asked.most:
    raise torch.OutOfMemoryError(f"CUDA out of memory: a micro-batch of {asked.micro} does not fit")
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    for part in range(asked.accumulate):
        is_last = part == asked.accumulate - 1
        with nullcontext() if is_last else model.no_sync():
            (model(torch.randn(asked.micro, 64)).square().mean() / asked.accumulate).backward()
        time.sleep(asked.factor * (asked.fixed_ms + asked.each_ms * asked.micro) / 1e3)
    optimizer.step()
