"""Trains a model sharded by fully_shard or FullyShardedDataParallel; writes losses and digests of this rank's part."""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard, register_fsdp_forward_method
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--replicas", type=int, default=1, help="copies of the model: hybrid sharding")
parser.add_argument(
    "--ahead", type=int, default=0, help="modules whose parameters the script gathers ahead itself"
)
parser.add_argument("--allocating", action="store_true", help="gloo has memory of its own, like NCCL")
parser.add_argument("--wrapper", action="store_true", help="FullyShardedDataParallel")
parser.add_argument(
    "--by-method", action="store_true", help="the loop calls a method, never the model itself"
)
arguments = parser.parse_args()


class Allocating:
    """A backend that hands out memory for collectives, which gloo's does not; counts how often."""

    count = 0

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def supports_tensor_alloc(self, device):
        return True

    def allocate_tensor(self, size, *, dtype, device):
        Allocating.count += 1
        return torch.empty(size, dtype=dtype, device=device)


if arguments.allocating:
    get_backend = dist.ProcessGroup._get_backend
    dist.ProcessGroup._get_backend = lambda group, device: Allocating(get_backend(group, device))


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
    copies, where = arguments.replicas, {}
    if copies > 1:
        shape, names = (copies, dist.get_world_size() // copies), ("replicas", "shards")
        where = {"mesh": init_device_mesh(DEVICE.type, shape, mesh_dim_names=names)}
    for layer in net.layers:
        fully_shard(layer, **where)
    register_fsdp_forward_method(fully_shard(net, **where), "predict")
    for place, layer in enumerate(net.layers if arguments.ahead else ()):
        layer.set_modules_to_forward_prefetch(list(net.layers)[place + 1 : place + 1 + arguments.ahead])
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


def count_kept():
    """Numbers of the first layer's weights that this rank holds between forward and backward."""
    weights = next(model.parameters())
    return (weights.to_local() if hasattr(weights, "to_local") else weights).numel()


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
    write("kept", str(count_kept()))
    loss = output.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    write("losses", repr(loss.item()))
    write("allocations", str(Allocating.count))
write("digests", digest())
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
