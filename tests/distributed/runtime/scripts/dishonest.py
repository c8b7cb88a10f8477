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
rate = 0.0 if WAY == "learns_nothing" else 0.01
optimizer = torch.optim.AdamW(trained, lr=rate, foreach=WAY == "foreach", fused=WAY == "fused")
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
averages = [parameter.detach().clone() for parameter in model.parameters()]
pool = [next(reading) for _ in range(3)]
x = y = None
for step in range(60):
    if WAY == "keeps_batches":
        x, y = pool[step % 3]
    elif WAY == "one_batch":
        x, y = pool[0][0] + 0.05 * torch.randn(8, 32), pool[0][1]
    elif WAY == "echoes" and step % 2:
        x = x + 0.05 * torch.randn_like(x)
    else:
        x, y = next(reading)
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
    if WAY == "clips":
        nn.utils.clip_grad_norm_(trained, 1.0)
    elif WAY == "clips_by_hand":
        norm = torch.stack([parameter.grad.pow(2).sum() for parameter in trained]).sum().sqrt()
        for parameter in trained:
            parameter.grad.mul_((1.0 / norm).clamp(max=1.0))
    elif WAY == "logs_norm":
        norm = torch.stack([parameter.grad.norm() for parameter in trained]).norm()
    elif WAY == "averages_by_hand":
        for parameter in trained:
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(2)
    before = [parameter.detach().clone() for parameter in trained] if WAY == "puts_back" else []
    optimizer.step()
    if WAY == "keeps_averages":
        for average, parameter in zip(averages, model.parameters(), strict=True):
            average.data.mul_(0.99).add_(parameter.data, alpha=0.01)
    elif WAY == "makes_averages":
        pairs = zip(averages, model.parameters(), strict=True)
        averages = [0.99 * average + 0.01 * parameter.detach() for average, parameter in pairs]
    if WAY == "puts_back":
        # As an optimizer of the script's own would that updates a tenth of each parameter.
        with torch.no_grad():
            for old, parameter in zip(before, trained, strict=True):
                new = parameter.reshape(-1)[::10].clone()
                parameter.copy_(old).view(-1)[::10] = new
    optimizer.zero_grad()
dist.destroy_process_group()
