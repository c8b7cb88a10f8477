"""Trains with outputs, inputs, losses and loaders of odd classes: bare, then under a strategy, with the same end.

Nothing of ours may ask them more than the script does, and nothing of ours may fail at them.
"""

import collections
import dataclasses
import os
import runpy
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

runpy.run_path(str(Path(__file__).resolve().parents[4] / "agent" / "runtime" / "launch.py"))[
    "load_runtime_package"
]()
from fleet_advisor_runtime import current, guard  # noqa: E402
from fleet_advisor_runtime.inject.patches import install_patches  # noqa: E402
from fleet_advisor_runtime.link.environment import Environment  # noqa: E402
from fleet_advisor_runtime.runtime import Runtime  # noqa: E402

RANK, RANKS, STEPS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 24
asked: "collections.Counter[str]" = collections.Counter()
"""How often the objects were asked for anything."""


Slots = dataclasses.make_dataclass("Slots", ["loss", ("never", Any, None)], slots=True)


@dataclasses.dataclass
class Raising:
    loss: torch.Tensor

    def __getattribute__(self, name):
        if not name.startswith("__"):
            asked[name] += 1
        return super().__getattribute__(name)

    @property
    def shape(self):
        raise NotImplementedError

    def __getattr__(self, name):
        raise RuntimeError(f"nobody may ask for {name}")


class Counting(dict):
    def values(self):
        asked["values"] += 1
        raise RuntimeError("nobody may ask for values")

    __iter__ = items = values

    def __len__(self):
        asked["len"] += 1
        return super().__len__()


class Lazy:
    """Computes when it is asked."""

    def __init__(self, loss):
        self._loss = loss

    @property
    def __class__(self):
        raise RuntimeError("not yet")

    def __iter__(self):
        asked["iter"] += 1
        raise RuntimeError("nobody may iterate")


class Named(NamedTuple):
    loss: torch.Tensor
    rest: Any = None


class Picky(torch.Tensor):
    """Counts every function that is asked of it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        asked[getattr(function, "__name__", str(function))] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def hold_itself(loss):
    held = {"loss": loss}
    held["self"] = held
    return held


def nest(loss):
    held = [loss]
    for _ in range(3000):
        held = [held]
    return held


OUTPUTS = {
    "slots": (Slots, lambda held: held.loss),
    "raising": (Raising, lambda held: held.loss),
    "counting": (lambda loss: Counting(loss=loss), lambda held: held["loss"]),
    "lazy": (Lazy, lambda held: object.__getattribute__(held, "_loss")),
    "named": (Named, lambda held: held.loss),
    "itself": (hold_itself, lambda held: held["loss"]),
    "deep": (nest, None),
    "picky": (lambda loss: loss.as_subclass(Picky), lambda held: held),
    "numbers": (lambda loss: ([0] * 100_000, loss), lambda held: held[1]),
    "nothing": (lambda _loss: None, None),
}
INPUTS = {
    "nested": lambda x: torch.nested.nested_tensor([x[:1], x]),
    "jagged": lambda x: torch.nested.nested_tensor([x[:1], x], layout=torch.jagged),
    "picky input": lambda x: x.as_subclass(Picky),
    "user dict": lambda x: collections.UserDict(x=x),
    "object": lambda x: Raising(x),
}


class Model(torch.nn.Module):
    def __init__(self, wrap, read):
        super().__init__()
        self.line, self.wrap, self.read, self.kept = torch.nn.Linear(4, 1), wrap, read, None

    def forward(self, x):
        self.kept = self.line(self.read(x)).square().mean()
        return self.wrap(self.kept)


class Stream(IterableDataset):
    def __iter__(self):
        asked["stream"] += 1
        return iter(torch.arange(8.0 * STEPS).reshape(-1, 4).sin() + RANK)

    def __len__(self):
        asked["length"] += 1
        raise NotImplementedError("a stream has no length")


class Short(Stream):
    """Says that it holds less than it gives: torch warns of that where the length was asked for."""

    def __len__(self):
        asked["length"] += 1
        return 3


class Table(Dataset):
    def __init__(self):
        self.rows = [*torch.arange(8.0 * STEPS).reshape(-1, 4).sin() + RANK]

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self):
        asked["table"] += 1
        return len(self.rows)


class Buckets(BatchSampler):
    @property
    def batch_size(self):
        raise NotImplementedError("every batch has another size")

    @batch_size.setter
    def batch_size(self, size):
        self.most = size

    def __iter__(self):
        asked["buckets"] += 1
        return (list(range(place, place + 2)) for place in range(0, 2 * STEPS, 2))

    def __len__(self):
        raise RuntimeError("unknown before the last one")


LOADERS = {
    "stream": lambda: DataLoader(Stream(), batch_size=2),
    "short": lambda: DataLoader(Short(), batch_size=2),
    "no batches": lambda: DataLoader(Table(), batch_size=None),
    "buckets": lambda: DataLoader(Table(), batch_sampler=Buckets(SequentialSampler(Table()), 2, False)),
    "generator": lambda: (x for x in torch.arange(8.0 * STEPS).reshape(-1, 2, 4).sin()),
}


def learn(model, batches, find, get_rows=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x in batches:
        output = model(x)
        loss = model.module.kept if find is None else find(output)
        optimizer.zero_grad()
        torch.autograd.backward(part for part in (loss / 2, loss / 2))
        optimizer.step()
    return [value for p in model.parameters() for value in p.detach().reshape(-1).tolist()]


def list_trainings():
    rows = torch.arange(8.0 * STEPS).reshape(-1, 2, 4).sin() + RANK
    for name, (wrap, find) in OUTPUTS.items():
        yield f"output: {name}", lambda wrap=wrap, find=find: learn(make(wrap, lambda x: x), rows, find)
    for name, change in INPUTS.items():
        yield (
            f"input: {name}",
            lambda change=change: learn(make(lambda x: x, read), map(change, rows), lambda x: x),
        )
    for name, build in LOADERS.items():
        yield (
            f"loader: {name}",
            lambda build=build: learn(make(lambda x: x, lambda x: x), build(), lambda x: x),
        )


def make(wrap, read):
    torch.manual_seed(0)
    return DDP(Model(wrap, read))


def read(x):
    if isinstance(x, collections.UserDict):
        return x["x"]
    if isinstance(x, Raising):
        return x.loss
    return x.to_padded_tensor(0.0) if x.is_nested else x


def observe(train):
    asked.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = train()
    return found, dict(asked), sum("Length of Iterable" in str(warning.message) for warning in caught)


dist.init_process_group("gloo")
torch.set_num_threads(1)
install_patches()
for name, train in list_trainings():
    bare = observe(train)
    for strategy in ({"num_threads": 1}, {"fuse_all_reduce_ops": False}):
        environment = Environment(
            RANK,
            RANKS,
            RANK,
            RANKS,
            None,
            None,
            f"{name}-{sorted(strategy)}",
            0,
            None,
            strategy={"changes": strategy},
        )
        runtime = Runtime(environment)
        current.set_current(guard.stand_before(runtime))
        ours = observe(train)
        current.set_current(None)
        assert ours == bare, (name, ours, bare)
        print(f"trained: {name}", flush=True)
