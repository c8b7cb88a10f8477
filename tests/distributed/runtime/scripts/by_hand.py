"""Ordinary DDP training; `--schedule` makes it do by hand what the advisor's knobs do: the reference for them."""

import argparse
import contextlib
import copy
import hashlib
import json
import math
import os

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="run")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--schedule", default="[]", help="[[first step, steps, what, value], …]")
parser.add_argument("--own-scaler", action="store_true")
arguments = parser.parse_args()
dist.init_process_group(BACKEND)
rank, world = dist.get_rank(), dist.get_world_size()
blocks = {first: (steps, what, value) for first, steps, what, value in json.loads(arguments.schedule)}

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10)
).to(DEVICE)  # fmt: skip
ddp = DDP(model)
average = AveragedModel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
own_scaler = torch.amp.GradScaler(DEVICE.type, enabled=arguments.own_scaler)
generator = torch.Generator().manual_seed(rank + 1)
torch.manual_seed(rank)


def write(what, text):
    with open(os.path.join(os.environ["OUT"], f"{arguments.name}.{what}.{rank}"), "a") as file:
        file.write(text + "\n")


def read_random():
    """Where torch's generators stand: dropout draws on the device."""
    on_card = [torch.cuda.get_rng_state(DEVICE)] if DEVICE.type == "cuda" else []
    return [torch.get_rng_state(), *on_card]


def digest():
    sha = hashlib.sha256()
    for module in (model, average):
        for tensor in module.state_dict().values():
            sha.update(tensor.cpu().numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        sha.update(b"".join(value.cpu().numpy().tobytes() for value in state.values()))
    sha.update(b"".join(state.numpy().tobytes() for state in read_random()))
    return sha.hexdigest()


def save():
    states = [copy.deepcopy(part.state_dict()) for part in (model, average, optimizer)]
    return states, read_random()


def restore(states, random):
    rates = [
        part.load_state_dict(state) for part, state in zip((model, average, optimizer), states, strict=True)
    ]
    torch.set_rng_state(random[0])
    if DEVICE.type == "cuda":
        torch.cuda.set_rng_state(random[1], DEVICE)
    return rates


def average_parameters():
    for parameter in model.parameters():
        parameter.data.mul_(1 / world)
        dist.all_reduce(parameter.data)


def mean_over_ranks(loss):
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / world


class Block:
    """What a knob does, written out as its user would."""

    def __init__(self, what, value):
        self.what, self.value, self.place = what, value, -1
        self.saved = save()
        first, growth = (32768.0, 2000) if what == "fp16" else (float(value), 10**9)
        self.scaler = torch.amp.GradScaler(
            DEVICE.type, init_scale=first, growth_interval=growth, enabled=what in ("fp16", "static")
        )
        self.since, self.interval, self.first = 0, value, None
        if what == "dgc":
            self.state = power_sgd.PowerSGDState(None, matrix_approximation_rank=value, start_powerSGD_iter=2)
            # The advisor's hook is a new one in every block; DDP takes one hook for its whole life.
            hooks[:] = [self.state]

    @property
    def is_local(self):
        return self.what == "adaptive" and self.place >= 1

    @property
    def merges_on(self):
        return self.what == "merge" and self.place >= 1 and self.place % self.value != 0

    def end(self):
        if self.is_local and self.since:
            average_parameters()
        hooks.clear()
        if self.what != "none":
            optimizer.zero_grad()
            restore(*self.saved)
            # After a step without reduction DDP broadcasts no buffers; before the block it did.
            ddp.require_forward_param_sync = True


def reduce(state, bucket):
    if hooks:
        return power_sgd.powerSGD_hook(hooks[0], bucket)
    tensor = bucket.buffer().div_(world)
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


# Inside the forward: the advisor switches and restores right before it.
model.register_forward_pre_hook(lambda *_: write("digests", digest()))
hooks = []
if any(what == "dgc" for _, what, _ in blocks.values()):
    ddp.register_comm_hook(None, reduce)
block, ends = Block("none", 1), -1
for step in range(arguments.steps):
    if step == ends:
        block.end()
    if step == ends or step in blocks:
        steps, what, value = blocks.get(step, (0, "none", 1))
        block, ends = Block(what, value), step + steps
    block.place += 1
    x, y = torch.randn(16, 64, generator=generator), torch.randint(10, (16,), generator=generator)
    x, y = x.to(DEVICE), y.to(DEVICE)
    scales = block.what in ("fp16", "static") and block.place >= 1
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16, "static": torch.float16}.get(block.what)
    with ddp.no_sync() if block.is_local or block.merges_on else contextlib.nullcontext():
        with torch.autocast(DEVICE.type, halves or torch.bfloat16, enabled=block.what == "bf16" or scales):
            output = ddp(x)
        with torch.autocast(DEVICE.type, torch.float16, enabled=False):
            loss = 40 * nn.functional.cross_entropy(output.float(), y)
        part = block.value if block.what == "merge" and block.place >= 1 else 1
        scaled = block.scaler.scale(loss / part) if scales else loss / part
        own_scaler.scale(scaled).backward()
    write("losses", repr(loss.item()))
    if scales:
        block.scaler.unscale_(optimizer)
    own_scaler.unscale_(optimizer)
    most = float("inf") if block.merges_on else 20.0
    write("norms", repr(nn.utils.clip_grad_norm_(model.parameters(), most).item()))
    if not block.merges_on:
        if scales:
            block.scaler.step(optimizer)
            block.scaler.update()
        else:
            own_scaler.step(optimizer)
            own_scaler.update()
        optimizer.zero_grad()
    average.update_parameters(model)
    schedule.step()
    if block.what == "adaptive":
        now = mean_over_ranks(loss), optimizer.param_groups[0]["lr"]
        block.first = block.first or now
        block.since += block.is_local
        if block.is_local and block.since == block.interval:
            average_parameters()
            ratio = block.first[1] / now[1] * now[0] / block.first[0]
            block.interval = min(16, max(1, math.ceil(math.sqrt(ratio) * block.value)))
            block.since = 0
torch.save(model.state_dict(), os.path.join(os.environ["OUT"], f"{arguments.name}.model.{rank}"))
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
