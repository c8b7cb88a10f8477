"""Joins a process group of one unless it is to train `alone`, trains a plain model a few steps, and ends as told."""

import importlib.util
import sys

assert importlib.util.find_spec("torch")  # as libraries do that only want to know whether it is installed

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

steps, ending = int(sys.argv[1]), sys.argv[2]
if sys.argv[3:] != ["alone"]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(steps):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if ending == "raise":
    sys.excepthook = lambda *_: None
    raise RuntimeError("crashed")
sys.exit(int(ending))
