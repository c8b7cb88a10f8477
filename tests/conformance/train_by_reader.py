"""Trains on samples that take 3 ms each, read through torchdata: `train_by_reader.py nodes|stateful`."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, DistributedSampler, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, Prefetcher, SamplerWrapper
from torchdata.stateful_dataloader import StatefulDataLoader


class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, place):
        time.sleep(0.003)
        return torch.full((64,), float(place)), place % 2


dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
data = Slow()
sampler = DistributedSampler(data)
if sys.argv[1] == "stateful":
    loader = StatefulDataLoader(data, 8, sampler=sampler)
else:
    batches = Batcher(Mapper(SamplerWrapper(sampler), data.__getitem__), 8)
    loader = Loader(Prefetcher(Mapper(batches, default_collate), 2))
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for step, (inputs, labels) in enumerate(loader):
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 60:
        break
dist.destroy_process_group()
