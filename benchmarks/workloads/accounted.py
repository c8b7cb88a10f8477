"""A training whose step is made of known parts, with an account of its own: what `accounts.py` compares with.

    torchrun --nproc-per-node 2 accounted.py '{"works": [{"where": "own", "seconds": 0.05, "ranks": [1]}]}' FOLDER

One line of JSON a step goes to FOLDER/rank-N.jsonl (the variable ACCOUNTS_FOLDER says it where a trial protects folders
that stand in the command): when it began (the monotonic clock) and the seconds of every part.
Parts do not overlap: what happens inside another part is taken off it. What a backward takes after its last gradient
was there is the wait for the reduction, and for other ranks.
"""

import contextlib
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

PARTS = ("data", "forward", "backward", "wait", "optimizer", "own", "collective")
_GARBAGE = 200_000
"""Objects in cycles that one collection of garbage finds."""


@dataclass(frozen=True)
class Work:
    """Something that a step does besides training its model."""

    where: str
    """`own` (the loop), `data` (the loader), `forward`, `backward` or `optimizer`."""
    seconds: float = 0.0
    how: str = "sleep"
    """`sleep`, `spin` (a processor is busy so long), `clip`, `ema`, `collect`, `save` or `evaluate`."""
    ranks: Sequence[int] = ()
    """Which ranks do it; all of them where empty."""
    every: int = 1
    """In every how many steps."""
    times: int = 1
    """How often in such a step."""


@dataclass(frozen=True)
class Collective:
    """Communication of the script's own."""

    kind: str
    """A key of `_KINDS`."""
    where: str = "own"
    """`own` or `forward`."""
    seconds: float = 0.03
    """About how long it is to take in a step: it is repeated so often."""
    numel: int = 300_000


@dataclass(frozen=True)
class Case:
    """What the training is made of."""

    works: Sequence[Work] = ()
    collectives: Sequence[Collective] = ()
    width: int = 64
    depth: int = 2
    batch: int = 8
    accumulate: int = 1
    optimizer: str = "SGD"
    loader: str = "inline"
    """`inline` (no worker), `workers` (one process), `none` (made by the loop), `iterator` (one of its own)."""
    nested: bool = False
    """Whether the wrapped model's forward runs a backward pass."""
    checkpointed: str = ""
    """What is computed again in the backward pass: each of the `layers`, the forward with its `works`, or
    nothing, because no gradient is recorded where it is called (`frozen`)."""
    dtype: str = "float32"
    buffers: bool = False
    unused: bool = False
    searches: bool = False
    """DDP searches for unused parameters, and there are none."""
    additions: int = 0
    """Small operations of a forward, which such a search goes through."""
    constant_mib: float = 0.0
    """A buffer that never changes."""
    compile_s: float = 0.0
    """What compiling a part of the forward takes; 0 compiles nothing."""
    versions: int = 2
    """How many versions of it there are: one step uses the next one."""
    bucket_cap_mb: float | None = None
    second_model: bool = False
    plain: bool = False
    """One rank, whose model nothing wraps, in a group that no launcher has told of."""
    epoch: int = 1_000_000
    """Batches of an epoch."""
    steps: int = 1_000_000


def read_case(text: str) -> Case:
    """Return the case that the first argument describes."""
    fields: dict[str, Any] = json.loads(text)
    fields["works"] = [Work(**work) for work in fields.get("works", ())]
    fields["collectives"] = [Collective(**one) for one in fields.get("collectives", ())]
    return Case(**fields)


@dataclass
class Account:
    """Seconds of the step in progress, part by part."""

    seconds: Counter[str] = field(default_factory=Counter)
    began: float = 0.0
    _open: list[str] = field(default_factory=lambda: ["own"])
    _since: float = 0.0

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What happens inside belongs to this part and to no other."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def end_step(self) -> dict[str, Any]:
        """Return the line of the step that ends here, and begin the next one."""
        self._charge()
        line = {"began": self.began, **{part: round(self.seconds[part], 7) for part in PARTS}}
        self.seconds.clear()
        self.began = time.monotonic()
        return line

    def begin(self) -> None:
        """Begin the first step."""
        self.began, self._since = time.monotonic(), time.perf_counter()


ACCOUNT = Account()
LAST_GRADIENT = [0.0]
STEP = [0]


def do(work: Work, model: nn.Module | None = None, copy: nn.Module | None = None) -> None:
    """Do it, where this rank does it in this step."""
    if (work.ranks and dist.get_rank() not in work.ranks) or STEP[0] % work.every:
        return
    for _ in range(work.times):
        if work.how == "sleep":
            time.sleep(work.seconds)
        elif work.how == "spin":
            until = time.thread_time() + work.seconds
            while time.thread_time() < until:
                pass
        elif work.how == "collect":
            rings: list[Any] = [[] for _ in range(_GARBAGE)]
            for ring in rings:
                ring.append(ring)
            del rings, ring
            gc.collect()
        elif model is not None and work.how == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        elif model is not None and copy is not None and work.how == "ema":
            for mine, theirs in zip(copy.parameters(), model.parameters(), strict=True):
                mine.data.mul_(0.999).add_(theirs.data, alpha=0.001)
        elif model is not None and work.how == "evaluate":
            inner = getattr(model, "module", model)
            inner.eval()
            with torch.no_grad():
                until = time.perf_counter() + work.seconds
                while time.perf_counter() < until:
                    inner(torch.randn(8, inner.width))
            inner.train()
        elif model is not None and work.how == "save":
            torch.save(model.state_dict(), f"/dev/shm/accounted-{dist.get_rank()}.pt")


def _wait_for(x: torch.Tensor, _: torch.Tensor) -> None:
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()


def _reduce_functionally(x: torch.Tensor, _: torch.Tensor) -> None:
    functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))


_KINDS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "all_reduce": lambda x, _: dist.all_reduce(x),
    "all_to_all": lambda x, out: dist.all_to_all_single(out[0], x),
    "all_gather": lambda x, out: dist.all_gather(list(out), x),
    "all_gather_into": lambda x, out: dist.all_gather_into_tensor(out.view(-1), x),
    "broadcast": lambda x, _: dist.broadcast(x, 0),
    "barrier": lambda _, __: dist.barrier(),
    "async": _wait_for,
    "functional": _reduce_functionally,
    "objects": lambda x, _: dist.all_gather_object([None] * dist.get_world_size(), x[:2000].numpy()),
}
"""Of a tensor, and of one with a row for every rank."""


class Repeated:
    """A collective that is done as often as takes its seconds."""

    def __init__(self, wanted: Collective) -> None:
        out = torch.zeros(dist.get_world_size(), wanted.numel)
        self._call = partial(_KINDS[wanted.kind], torch.zeros(wanted.numel), out)
        dist.barrier()
        began = time.perf_counter()
        for _ in range(4):
            self._call()
        each = torch.tensor([(time.perf_counter() - began) / 4])
        dist.all_reduce(each, dist.ReduceOp.MAX)
        self._times = max(1, min(200, round(wanted.seconds / each.item())))

    def __call__(self) -> None:
        """Do it."""
        with ACCOUNT.part("collective"):
            for _ in range(self._times):
                self._call()


def compile_slowly(seconds: float) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Return a function that is compiled anew for every number it is given, which takes so long at least."""
    for limit in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit"):
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 1_000_000)

    def compile_graph(graph: Any, _: Any) -> Any:
        time.sleep(seconds)
        return graph.forward

    return torch.compile(lambda x, number: x + number * 1e-9, backend=compile_graph, dynamic=False)


class _Slowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, works: Sequence[Work]) -> torch.Tensor:
        ctx.works = works
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        for work in ctx.works:
            do(work)
        return grads[0], None


class Model(nn.Module):
    """Linear layers, with the works and collectives of a forward and a backward pass between them."""

    def __init__(self, case: Case, collectives: Sequence[Repeated]) -> None:
        super().__init__()
        self.case, self.width, self._collectives = case, case.width, collectives
        self.layers = nn.ModuleList(nn.Linear(case.width, case.width) for _ in range(case.depth))
        self.norm = nn.BatchNorm1d(case.width) if case.buffers else nn.Identity()
        if case.constant_mib:
            self.register_buffer("constant", torch.zeros(int(case.constant_mib * 2**18)))
        self._scale = compile_slowly(case.compile_s) if case.compile_s else None
        self.spare = nn.Linear(case.width, case.width) if case.unused else None
        self.forwards = [work for work in case.works if work.where == "forward"]
        self.backwards = [work for work in case.works if work.where == "backward"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, width) in and out."""
        if self.training:
            if self.case.checkpointed == "frozen":
                with torch.no_grad():
                    checkpoint(self._work_and_run, x, use_reentrant=False)
            elif self.case.checkpointed != "works":
                self._work()
            for collective in self._collectives:
                collective()
        if self.case.nested:
            with torch.enable_grad():
                at = x.detach().requires_grad_(True)
                (force,) = torch.autograd.grad(self._run(at).square().sum(), at, create_graph=True)
            x = x + 0.01 * force
        if self.training and self.case.checkpointed == "works":
            x = checkpoint(self._work_and_run, x, use_reentrant=False)
        else:
            x = self._run(x)
        for _ in range(self.case.additions):
            x = x + 1e-6
        if self.training and self._scale is not None:
            x = self._scale(x, STEP[0] % self.case.versions)
        return _Slowed.apply(x, self.backwards) if self.training and self.backwards else x

    def _work(self) -> None:
        for work in self.forwards:
            do(work)

    def _work_and_run(self, x: torch.Tensor) -> torch.Tensor:
        self._work()
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.case.checkpointed == "layers" and self.training:
                x = torch.relu(checkpoint(layer, x, use_reentrant=False))
            else:
                x = torch.relu(layer(x))
        return self.norm(x)


class Samples(IterableDataset):
    """Batches of noise; the loader's works are done with each."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._works = [work for work in case.works if work.where == "data"]

    def __len__(self) -> int:
        return self._case.epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self._case.epoch):
            for work in self._works:
                do(work)
            yield torch.randn(self._case.batch, self._case.width)


def make_batches(case: Case) -> Iterator[torch.Tensor]:
    """Return the batches without end, epoch after epoch."""
    if case.loader == "iterator":
        yield from Samples(case)
    workers = int(case.loader == "workers")
    loader = DataLoader(Samples(case), batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    while True:
        yield from loader


def make_optimizer(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    """Return torch's own, with the works of an optimizer inside its step."""
    works = [work for work in case.works if work.where == "optimizer"]
    base: Any = getattr(torch.optim, case.optimizer)

    class Slowed(base):
        def step(self, closure: Any = None) -> Any:
            for work in works:
                do(work)
            return super().step(closure)

    return (Slowed if works else base)(model.parameters(), lr=1e-4)


def compute_backward(loss: torch.Tensor) -> None:
    """Run the backward pass; what comes after the last gradient is waiting for the reduction, and for other ranks."""
    with ACCOUNT.part("backward"):
        loss.backward()
        ended = time.perf_counter()
        ACCOUNT.seconds["wait"] += ended - LAST_GRADIENT[0]
        ACCOUNT.seconds["backward"] -= ended - LAST_GRADIENT[0]


def note_gradient(_: torch.Tensor) -> None:
    """Remember when the latest gradient was there."""
    LAST_GRADIENT[0] = time.perf_counter()


def main() -> None:
    """Train until the session ends, or for the case's steps."""
    case, folder = read_case(sys.argv[1]), Path((*sys.argv[2:], os.environ.get("ACCOUNTS_FOLDER", "."))[0])
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if case.plain else {}
    dist.init_process_group("gloo", **alone)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    own = [Repeated(one) for one in case.collectives if one.where == "own"]
    inside = [Repeated(one) for one in case.collectives if one.where == "forward"]
    net, copy = Model(case, inside), Model(case, [])
    cap = {} if case.bucket_cap_mb is None else {"bucket_cap_mb": case.bucket_cap_mb}
    model = (
        net
        if case.plain
        else DistributedDataParallel(net, find_unused_parameters=case.unused or case.searches, **cap)
    )
    second = DistributedDataParallel(nn.Linear(case.width, case.width)) if case.second_model else None
    for parameter in [*net.parameters(), *(second.parameters() if second else ())]:
        parameter.register_post_accumulate_grad_hook(note_gradient)
    optimizer = make_optimizer(case, nn.ModuleList([net, second.module] if second else [net]))
    works = [work for work in case.works if work.where == "own"]
    batches = make_batches(case) if case.loader != "none" else None
    forward = partial(compute_loss, case, model, second)
    with (folder / f"rank-{dist.get_rank()}.jsonl").open("w", buffering=1) as lines:
        ACCOUNT.begin()
        for STEP[0] in range(case.steps):
            optimizer.zero_grad()
            for micro in range(case.accumulate):
                if batches is None:
                    x = torch.randn(case.batch, case.width)
                else:
                    with ACCOUNT.part("data" if case.loader != "iterator" else "own"):
                        x = next(batches)
                is_last = micro + 1 == case.accumulate
                with contextlib.nullcontext() if is_last or case.plain else model.no_sync():
                    compute_backward(forward(x))
            for collective in own:
                collective()
            for work in works:
                do(work, model, copy)
            with ACCOUNT.part("optimizer"):
                optimizer.step()
            lines.write(json.dumps(ACCOUNT.end_step()) + "\n")
    dist.destroy_process_group()


def compute_loss(case: Case, model: nn.Module, second: nn.Module | None, x: torch.Tensor) -> torch.Tensor:
    """Return the loss; only the models' forward passes count as forward."""
    with ACCOUNT.part("forward"), torch.autocast("cpu", torch.bfloat16, enabled=case.dtype == "bfloat16"):
        y = model(x)
        if second is not None:
            y = second(y)
    return y.float().square().mean()


if __name__ == "__main__":
    main()
