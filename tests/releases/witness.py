"""Trains a small model and writes what the script itself sees of each step: what is in force must show here.

Nothing of the advisor is asked. Collectives are counted by torch's own profiler.
"""

import argparse
import gc
import hashlib
import json
import os
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--find-unused", action="store_true")
parser.add_argument("--norm", action="store_true", help="with batch norm, whose buffers change")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--sharded", action="store_true", help="by fully_shard")
parser.add_argument(
    "--accumulate", action="store_true", help="each step's batch in two halves, both exchanged"
)
parser.add_argument(
    "--checkpointed", action="store_true", help="each layer is computed again in the backward"
)
parser.add_argument("--unhooked", action="store_true", help="what is computed is looked at by no hook")
arguments = parser.parse_args()
BATCH, WIDTH = 8, 128
LOOKS = 10
"""The last steps, which are looked at closely."""


class Samples(Dataset):
    def __len__(self):
        return BATCH * dist.get_world_size() * arguments.steps

    def __getitem__(self, index):
        x = torch.full((WIDTH,), float(index)).sin() + torch.arange(WIDTH) / WIDTH
        return x, x.sum().tanh()


class Head(nn.Linear):
    def forward(self, x):
        inside["rows"] = len(x)
        return super().forward(x)


class Layer(nn.Sequential):
    def forward(self, x):
        inside["calls"] += arguments.checkpointed
        return super().forward(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))
        norm = nn.BatchNorm1d if arguments.norm else nn.Identity
        self.layers = nn.ModuleList(
            Layer(nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.Dropout(0.1), nn.GELU()) for _ in range(4)
        )
        self.head = (Head if arguments.unhooked else nn.Linear)(WIDTH, 1)

    def forward(self, x):
        x = x * self.scale
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if arguments.checkpointed else layer(x)
        return self.head(x)


def build():
    torch.manual_seed(0)
    net = Net()
    if not arguments.sharded:
        return net, DistributedDataParallel(net, find_unused_parameters=arguments.find_unused)
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard
    for layer in net.layers:
        fully_shard(layer)
    return net, fully_shard(net)


inside = {"rows": 0, "gathered": 0, "calls": 0}


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(local(tensor).detach().contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def name_format(gradients):
    for name, kind in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if all(torch.equal(g, g.to(kind).to(g.dtype)) for g in gradients):
            return name
    return "float32"


def has_low_rank(gradients):
    matrices = [gradient for gradient in gradients if gradient.dim() == 2 and min(gradient.shape) > 1]
    return not arguments.sharded and all(int(torch.linalg.matrix_rank(each)) <= 2 for each in matrices)


def look_at_buckets():
    if arguments.sharded:
        return {}
    log = model._get_ddp_logging_data()
    sizes = log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes")
    searches = bool(log.get("find_unused_parameters"))
    together = bool(getattr(model, "_bucket_config", None) and model.__dict__.get("batched_grad_copy"))
    return {
        "buckets": str(sizes),
        "searches": searches,
        "sends_buffers": model.broadcast_buffers,
        "together": together,
    }


dist.init_process_group("gloo")
net, model = build()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = Samples()
loader = DataLoader(
    data, BATCH, sampler=DistributedSampler(data, shuffle=False), num_workers=arguments.workers
)
torch.manual_seed(dist.get_rank())


def look_inside(module, given, output):
    inside.update(rows=len(output), format=str(output.dtype), threads=torch.get_num_threads())
    inside["gathered"] = local(net.layers[0][0].weight).numel()


if not arguments.unhooked:
    net.head.register_forward_hook(look_inside)
file = open(os.path.join(os.environ["OUT"], f"seen.{dist.get_rank()}"), "w")  # noqa: SIM115
before = digest(net.parameters())
for step, (x, y) in enumerate(loader):
    inside["calls"], looks = 0, step >= arguments.steps - LOOKS
    profile = torch.autograd.profiler.profile(enabled=looks, record_shapes=True)
    with profile:
        parts = 2 if arguments.accumulate else 1
        for part_x, part_y in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = (model(part_x).squeeze(-1) - part_y).square().mean() / parts
            loss.backward()
        read = () if arguments.accumulate else net.parameters()
        # Code that spells the attribute would be refused the deferral, also where it does not run.
        held = [getattr(p, "grad") for p in read]  # noqa: B009
        gradients = [local(each).detach().clone() for each in held if each is not None]
        optimizer.step()
        optimizer.zero_grad()
    names = ("c10d::", "aten::_fused", "aten::_foreach")
    events = [event for event in (profile.function_events if looks else ()) if event.name.startswith(names)]
    now = digest(net.parameters())
    group = optimizer.param_groups[0]
    seen = {
        "loss": loss.item().hex(),
        "parameters": now,
        "updated": now != before,
        "gradients": name_format(gradients),
        "low_rank": looks and has_low_rank(gradients),
        "ops": dict(sorted(Counter(event.name for event in events).items())),
        "sizes": sorted(str(event.input_shapes) for event in events if event.name.startswith("c10d::")),
        "ways": len(dist.distributed_c10d._world.pg_map),
        "optimizer": [str(group.get("fused")), str(group.get("foreach"))],
        "compiled": any(m._compiled_call_impl is not None for m in net.modules()),
        "collects_after": gc.get_threshold()[0],
        "children": len(open(f"/proc/self/task/{os.getpid()}/children").read().split()),  # noqa: SIM115
        **inside,
        **look_at_buckets(),
    }
    before = now
    file.write(json.dumps(seen) + "\n")
    file.flush()
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
