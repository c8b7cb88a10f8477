"""Trainings that are right and unusual, by name: `unusual.py NAME STEPS`; each rank writes what came out."""

import contextlib
import copy
import gc
import json
import os
import sys

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

NAME, STEPS = sys.argv[1], int(sys.argv[2])
dist.init_process_group(BACKEND)
rank = dist.get_rank()
torch.manual_seed(0)


def make_model(layers: int = 3, **options: bool) -> DistributedDataParallel:
    """The same on every rank."""
    return DistributedDataParallel(
        nn.Sequential(*(nn.Linear(32, 32) for _ in range(layers))).to(DEVICE), **options
    )


class WithTable(nn.Sequential):
    """A large buffer, which DDP broadcasts before every forward; one name of a training writes into it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(32, 32), nn.Linear(32, 32))
        self.register_buffer("table", torch.ones(4096, 512))
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        first = {"table_that_changes": 6, "table_that_changes_late": 40}.get(NAME, STEPS)
        if first < self.seen < STEPS:
            with torch.no_grad():
                self.table[0, 0] += x.detach().mean()
        return super().forward(x) * self.table[0, 0]


@torch.compile(backend="eager", fullgraph=True)
def clip_in_one_graph(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.01)


@torch.compile(backend="eager", fullgraph=True)
def clear_in_one_graph(layer: nn.Module) -> None:
    layer.zero_grad()


def draw() -> torch.Tensor:
    """A batch of this rank's own."""
    return torch.randn(8, 32, device=DEVICE)


def learn(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> float:
    """One ordinary step; its loss."""
    optimizer.zero_grad()
    batch = draw()
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


class Scene:
    """A batch that only its own model can look into."""

    def __init__(self) -> None:
        self.pictures = draw()


class Seeing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, scene: Scene) -> torch.Tensor:
        return self.layer(scene.pictures)


def run_out_of_memory(*_: object) -> None:
    """As a batch does that is too long."""
    raise MemoryError


class Partly(nn.Module):
    """Layers that are sharded one by one, of which only the first may be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4))

    def forward(self, batch: torch.Tensor, most: int = 4) -> torch.Tensor:
        for layer in self.layers[:most]:
            batch = layer(batch)
        return batch


if NAME.startswith("looks_"):
    from torch.distributed.fsdp import fully_shard

    partly = Partly().to(DEVICE)
    for layer in partly.layers:
        if NAME == "looks_at_layers_within_layers":
            layer.append(fully_shard(nn.Linear(32, 32).to(DEVICE)))
            layer.append(nn.Linear(32, 32).to(DEVICE))
        fully_shard(layer)
    model = fully_shard(partly)
elif NAME.startswith("table"):
    model = DistributedDataParallel(WithTable().to(DEVICE))
else:
    model = make_model(6 if NAME == "stateful_hook" else 3)
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.05)
found: dict[str, object] = {}
if NAME == "gan":
    critic = make_model(gradient_as_bucket_view=True)
    model = make_model(gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    critics = torch.optim.SGD(critic.parameters(), 0.01)
if NAME == "stateful_hook":
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
if NAME == "eval_mode":
    model.eval()
if NAME == "objects":
    model = DistributedDataParallel(Seeing().to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
torch.manual_seed(1 + rank)


class Counting(Sampler):
    """Knows how far it came, so that a training can be resumed in mid-epoch."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 100_000

    def __iter__(self):
        while True:
            self.given += 1
            yield self.given % 100


if NAME == "counting_sampler":
    sampler, data = Counting(), TensorDataset(torch.randn(100, 32))
    for step, (batch,) in enumerate(DataLoader(data, 8, sampler=sampler), 1):
        optimizer.zero_grad()
        (model(batch.to(DEVICE)) - batch.to(DEVICE)).square().mean().backward()
        optimizer.step()
        if step == STEPS:
            break
    found["ahead"] = sampler.given - 8 * STEPS
    STEPS = 0
if NAME == "joined":
    STEPS += 30 * rank
with model.join(divide_by_initial_world_size=False) if NAME == "joined" else contextlib.nullcontext():
    for step in range(STEPS):
        if NAME == "gan":
            optimizer.zero_grad()
            critic(model(draw())).mean().backward()
            optimizer.step()
            critics.zero_grad()
            fake = model(draw()).detach()  # a forward without a backward
            (critic(fake).square().mean() - critic(draw()).mean()).backward()
            critics.step()
        elif NAME == "objects":
            optimizer.zero_grad()
            model(Scene()).square().mean().backward()
            optimizer.step()
        elif NAME.startswith("looks_"):
            batch = draw()
            optimizer.zero_grad()
            (model(batch) - batch).square().mean().backward()
            # How the model does, between its gradients and their use: these forwards have no backward.
            with torch.set_grad_enabled(NAME == "looks_with_gradients"):
                model.eval()
                model(batch, 2 if NAME == "looks_at_a_part" else 4)
                model.train()
            optimizer.step()
        elif NAME == "inner_optimizers":
            # As in an attack, or in meta-learning.
            shift = torch.zeros(32, device=DEVICE, requires_grad=True)
            inner = torch.optim.SGD([shift], 0.1)
            for _ in range(2):
                (model.module(draw() + shift)).mean().neg().backward(inputs=[shift])
                inner.step()
            found["loss"] = learn(model, optimizer)
        elif NAME == "failing_forward":
            handle = model.module[1].register_forward_pre_hook(run_out_of_memory)
            with contextlib.suppress(MemoryError):
                model(draw())
            handle.remove()
            product = torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2, device=DEVICE)
            own = product.dtype is torch.float32 and model.require_backward_grad_sync
            found["not_its_own"] = int(found.get("not_its_own", 0)) + (not own)
            found["loss"] = learn(model, optimizer)
        elif NAME in (
            "clears_by_hand",
            "clears_in_one_graph",
            "clips",
            "clips_in_one_graph",
            "shrinks_by_hand",
        ):
            for parameter in model.parameters() if NAME == "clears_by_hand" else ():
                parameter.grad = None
            for layer in model.module if NAME == "clears_in_one_graph" else ():
                clear_in_one_graph(layer)
            if not NAME.startswith("clears_"):
                optimizer.zero_grad()
            before = next(model.parameters()).detach().clone()
            batch = draw()
            (model(batch) - batch).square().mean().backward()
            if NAME == "clips":
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                nn.utils.clip_grad_value_(model.parameters(), 1e-6)
            elif NAME == "clips_in_one_graph":
                clip_in_one_graph(list(model.parameters()))
            for parameter in model.parameters() if NAME == "shrinks_by_hand" else ():
                parameter.grad.mul_(0.5)
            optimizer.step()
            found["updates"] = int(found.get("updates", 0)) + (
                not torch.equal(before, next(model.parameters()))
            )
        else:
            if step == STEPS // 2 and NAME in ("second_optimizer", "second_model"):
                optimizer = torch.optim.SGD(model.parameters(), 0.02)
            if step == STEPS // 2 and NAME == "second_model":
                model = make_model()
                optimizer = torch.optim.SGD(model.parameters(), 0.05)
            if step == STEPS // 2 and NAME == "own_collector":
                gc.set_threshold(600)
            if step == STEPS // 2 and NAME == "late_hook":
                model.register_comm_hook(None, default_hooks.fp16_compress_hook)
            if step % 40 == 0 and NAME == "copies":
                model = copy.deepcopy(model)
                optimizer = torch.optim.SGD(model.parameters(), 0.05)
            if (step % 3 == 0 and NAME == "optimizers_anew") or (step % 9 == 0 and NAME == "all_anew"):
                model = make_model() if NAME == "all_anew" else model
                optimizer = torch.optim.SGD(model.parameters(), 0.05)
            if step % 60 == 0 and NAME == "folds":
                model = make_model()
                model.module.circle = model.module.forward  # as any hook that is a method of its module
                model.module.data = [{"x": [number], "y": [number]} for number in range(20_000)]
                optimizer = torch.optim.SGD(model.parameters(), 0.05)
            found["loss"] = learn(model, optimizer)
if NAME == "folds":
    found["alive"] = sum(isinstance(each, nn.Sequential) for each in gc.get_objects())
if NAME.startswith("table"):
    found["table"] = model.module.table[0, 0].item()
own = (
    parameter.to_local() if hasattr(parameter, "to_local") else parameter for parameter in model.parameters()
)
found["sum"] = repr(sum(float(parameter.detach().double().sum()) for parameter in own))
with open(os.path.join(os.environ["OUT"], f"{NAME}.{rank}"), "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
