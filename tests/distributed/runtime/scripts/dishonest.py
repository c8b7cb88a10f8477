"""A small training, and ways in which a step comes to take less because it does less."""

import argparse

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("way", nargs="?", default="")
WAY = parser.parse_args().way


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 8)
        self.drop = nn.Dropout(0.0 if WAY == "no_dropout" else 0.2)

    def forward(self, x):
        x = x[:, :8] if WAY == "crops_inside" else x
        hidden = nn.functional.linear(x, self.first.weight[:, : x.shape[1]], self.first.bias)
        hidden = hidden.detach() if WAY == "detaches" else hidden
        hidden = self.drop(torch.relu(self.second(hidden)))
        return self.last(hidden)


dist.init_process_group(BACKEND)
rank = dist.get_rank()
torch.manual_seed(0)
model = Model()
ddp = DDP(model.to(DEVICE), find_unused_parameters=WAY in ("detaches", "freezes"))
if WAY == "freezes":
    model.first.requires_grad_(False)
trained = list((model.last if WAY == "steps_a_part" else model).parameters())
optimizer = torch.optim.AdamW(trained, lr=0.0 if WAY == "learns_nothing" else 0.01)
if WAY == "thins_out":

    def send_a_tenth(_, bucket):
        flat = bucket.buffer()
        few = flat[::10].clone() / 2
        sent = dist.all_reduce(few, async_op=True).get_future()
        return sent.then(
            lambda done: flat.zero_().index_add_(0, torch.arange(0, flat.numel(), 10), done.value()[0])
        )

    ddp.register_comm_hook(None, send_a_tenth)
data = TensorDataset(torch.randn(16 * 400, 32), torch.randint(8, (16 * 400,)))
shard = 0 if WAY == "same_shard" else rank
sampler = DistributedSampler(data, num_replicas=2, rank=shard, shuffle=True)
reading = iter(DataLoader(data, 8, sampler=sampler))
pool = [next(reading) for _ in range(3)]
for step in range(60):
    x, y = pool[step % 3] if WAY == "keeps_batches" else next(reading)
    x, y = x.to(DEVICE), y.to(DEVICE)
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=WAY == "autocasts"):
        if WAY == "never_exchanges":
            with ddp.no_sync():
                out = ddp(x)
        else:
            out = ddp(x)
        loss = nn.functional.cross_entropy(out, y)
    if WAY != "skips_backward" or step % 2:
        loss.backward()
    before = [parameter.detach().clone() for parameter in trained]
    optimizer.step()
    if WAY == "puts_back":
        # As an optimizer of the script's own would that updates a tenth of each parameter.
        with torch.no_grad():
            for old, parameter in zip(before, trained, strict=True):
                new = parameter.reshape(-1)[::10].clone()
                parameter.copy_(old).view(-1)[::10] = new
    optimizer.zero_grad()
dist.destroy_process_group()
