"""Trains a model sharded by fully_shard or FullyShardedDataParallel; writes losses and digests of this rank's part."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard, register_fsdp_forward_method
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--wrapper", action="store_true", help="FullyShardedDataParallel")
parser.add_argument(
    "--by-method", action="store_true", help="the loop calls a method, never the model itself"
)
arguments = parser.parse_args()


class Samples(Dataset):
    def __len__(self):
        return 16 * arguments.steps

    def __getitem__(self, index):
        return torch.full((32,), float(index)).sin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.ReLU()) for _ in range(3)
        )
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def predict(self, x):
        return self.forward(x)


def build():
    torch.manual_seed(0)
    net = Net().to(DEVICE)
    if arguments.wrapper:
        return FullyShardedDataParallel(net, device_id=DEVICE)
    for layer in net.layers:
        fully_shard(layer)
    register_fsdp_forward_method(fully_shard(net), "predict")
    return net


def write(what, text):
    with open(os.path.join(os.environ["OUT"], f"{what}.{dist.get_rank()}"), "a") as file:
        file.write(text + "\n")


def digest():
    """Of the parameters as the optimizer has them, which are sharded also while the model holds gathered ones."""
    sha = hashlib.sha256()
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        sha.update(local.detach().cpu().numpy().tobytes())
    return sha.hexdigest()


dist.init_process_group(BACKEND)
model = build()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = Samples()
loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False))
torch.manual_seed(dist.get_rank())
for x in loader:
    x = x.to(DEVICE)
    output = model.predict(x) if arguments.by_method else model(x)
    write("digests", digest())
    loss = output.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    write("losses", repr(loss.item()))
write("digests", digest())
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
