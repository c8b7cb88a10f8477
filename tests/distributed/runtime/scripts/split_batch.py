"""Trains a small model by the usual loop, in float64, and writes down its losses, learning rates and parameters.

Ranks may be short of memory for more than --fits samples: the last one always, or each in turn (--short), in a forward
or in a backward; then what the runtime has learned of its memory is forgotten, so that it runs short again and again.
"""

import argparse
import contextlib
import os
import random
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--name", default="run")
parser.add_argument("--model", default="plain")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--short", type=int, default=0)
parser.add_argument("--fits", type=int, default=0)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
MEMORY = {"forward": False, "backward": False, "forward_failed": 0, "backward_failed": 0}


def run_short(where: str, samples: int) -> None:
    if MEMORY[where] and samples > args.fits:
        if args.short:
            MEMORY[where] = False
        MEMORY[f"{where}_failed"] += 1
        raise torch.OutOfMemoryError(f"an injected shortage in a {where}")


class Room(torch.autograd.Function):
    """Fails where memory is short."""

    @staticmethod
    def forward(ctx, x):
        run_short("forward", len(x))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        run_short("backward", len(gradient))
        return gradient


class Mixing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Keeping(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.penalty = x.square().mean()
        return x


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        extra = {
            "norm": torch.nn.BatchNorm1d(32),
            "dropout": torch.nn.Dropout(0.2),
            "mixing": Mixing(),
            "keeping": Keeping(),
        }
        self.body = torch.nn.Sequential(
            torch.nn.Linear(8, 32),
            extra.get(args.model, torch.nn.Tanh()),
            torch.nn.Linear(32, 32),
            torch.nn.Tanh(),
        )
        self.head = torch.nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, y: "torch.Tensor | None" = None) -> object:
        inner = self.body(x)
        found = self.head(Room.apply(inner) if args.fits else inner)
        if y is None:
            return found
        loss = (found - y).square()
        if args.model == "weighted":
            weights = y.abs()
            return {"loss": (loss * weights).sum() / weights.sum(), "found": found}
        return {"loss": loss.mean(), "found": found}


model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
x = torch.randn(args.batch * 2 * 40, 8)
data = TensorDataset(x, x.sum(1, keepdim=True).tanh() + 0.1 * torch.randn(len(x), 1))
loader = DataLoader(data, batch_size=args.batch, sampler=DistributedSampler(data, shuffle=True))
lines, step, micro = [], 0, 0
chance = random.Random(rank)
while step < args.steps:
    for x, y in loader:
        micro += 1
        accumulates = micro % args.accumulate != 0
        if args.short and rank == step % dist.get_world_size():
            MEMORY[chance.choice(["forward", "backward"])] = True
            for known in sys.modules[
                "fleet_advisor_runtime.current"
            ].current_runtime.runtime.splitting._known.values():
                known.parts = 0
        elif args.fits and not args.short:
            MEMORY["forward"] = rank == dist.get_world_size() - 1
        with model.no_sync() if accumulates else contextlib.nullcontext():
            if args.model in ("inside", "weighted"):
                loss = model(x, y=y)["loss"]
            else:
                loss = torch.nn.functional.mse_loss(model(x), y)
            (loss / args.accumulate).backward()
        MEMORY["forward"] = MEMORY["backward"] = False
        if accumulates:
            continue
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        lines.append(f"{loss.item():.17g} {norm.item():.17g} {schedule.get_last_lr()[0]:.17g}")
        step += 1
        if step == args.steps:
            break
folder = os.environ["OUT"]
with open(f"{folder}/{args.name}.{rank}", "w") as file:
    file.write(
        "\n".join([*lines, *(f"{p:.17g}" for q in model.parameters() for p in q.detach().flatten().tolist())])
    )
with open(f"{folder}/{args.name}.failed.{rank}", "w") as file:
    file.write(f"{MEMORY['forward_failed']} {MEMORY['backward_failed']}")
dist.destroy_process_group()
