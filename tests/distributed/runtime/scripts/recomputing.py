"""Trains checkpointed blocks with dropout, two micro-batches a step; `--way` is how they are checkpointed."""

import argparse
import os

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

parser = argparse.ArgumentParser()
parser.add_argument("--way", default="plain")
parser.add_argument("--norm", action="store_true", help="with running statistics inside")
parser.add_argument("--static", action="store_true")
parser.add_argument("--steps", type=int, default=120)
arguments = parser.parse_args()


def choose():
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default, torch.ops.aten.addmm.default])


if arguments.way == "switched":
    import accelerate.accelerator  # noqa: F401  (as a model of transformers brings it along)

WORDS = {
    "plain": {"use_reentrant": False},
    "selective": {"use_reentrant": False, "context_fn": choose},
    "reentrant": {"use_reentrant": True},
    "switched": {"use_reentrant": False},
    "unrepeated": {"use_reentrant": False, "preserve_rng_state": False},
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm1d(16) if arguments.norm else nn.Identity()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), norm, nn.Dropout(0.2), nn.GELU()) for _ in range(3)
        )
        self.last = nn.Linear(16, 4)
        self.gradient_checkpointing = arguments.way == "switched"

    def forward(self, x):
        x = self.first(x)
        if arguments.way == "sequential":
            return self.last(checkpoint_sequential([*self.blocks, nn.Identity()], 4, x, use_reentrant=True))
        for block in self.blocks:
            x = checkpoint(block, x, **WORDS[arguments.way]) if arguments.way in WORDS else block(x)
        return self.last(x)


dist.init_process_group(BACKEND)
torch.manual_seed(0)
net = Net().to(DEVICE)
if arguments.way == "wrapper":
    apply_activation_checkpointing(
        net,
        lambda module: checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
        lambda module: isinstance(module, nn.Sequential),
    )
model = DDP(net, static_graph=arguments.static)
optimizer = torch.optim.AdamW(net.parameters())
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []
for _ in range(arguments.steps):
    for _ in range(2):
        x, y = torch.randn(8, 8, generator=generator), torch.randint(4, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
torch.save(
    [torch.tensor(losses), *(value.detach().cpu() for value in net.state_dict().values())],
    os.path.join(os.environ["OUT"], f"seen.{dist.get_rank()}"),
)
dist.barrier()
dist.destroy_process_group()
