"""Makes every call that the patches stand in, while signals of the runtime raise: nothing of that reaches the script.

`--all`: every signal raises, and every function of the patches has been called. `--each`: one signal after another
raises in a runtime of its own, on both ranks, then on one alone.
"""

import contextlib
import gc
import io
import os
import runpy
import sys
import types
from pathlib import Path

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

runpy.run_path(str(Path(__file__).resolve().parents[4] / "agent" / "runtime" / "launch.py"))[
    "load_runtime_package"
]()
from fleet_advisor_runtime import current, guard, hooks  # noqa: E402
from fleet_advisor_runtime.inject import collectives, patches  # noqa: E402
from fleet_advisor_runtime.link.environment import Environment  # noqa: E402
from fleet_advisor_runtime.runtime import Runtime  # noqa: E402

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ALONE = ("begin_forward", "end_forward", "begin_backward", "enter_join", "begin_collective")
"""Signals that also fail on one rank alone."""
Scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


class Ours(Exception):
    """What no script may see."""


class Broken:
    """A runtime of which nothing works."""

    def __init__(self):
        self.told = set()

    def fail(self, error):
        assert isinstance(error, Ours)

    def __getattr__(self, name):
        def tell(*_):
            self.told.add(name)
            raise Ours(name)

        return tell


class Watched(DDP):
    """Its own forward stands before DDP's: it is watched by hooks."""

    def forward(self, *args):
        return super().forward(*args)


def nothing(_place):
    """What a helper of the script does."""


def train(ddp, steps=12):
    """Everything that scripts do in steps."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(torch.arange(8.0 * steps).reshape(-1, 4).sin() + RANK), batch_size=2)
    scaler = Scaler(enabled=False)
    yield len(loader)
    for (inputs,) in loader:
        with torch.autocast("cpu", enabled=False):
            loss = scaler.scale(ddp(inputs).square().mean())
        optimizer.zero_grad()
        loss.backward()
        yield loss.item()
        yield float(torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0))
        torch.nn.utils.clip_grad_value_(ddp.parameters(), 0.5)
        if hasattr(torch.nn.utils, "clip_grads_with_norm_"):
            torch.nn.utils.clip_grads_with_norm_(ddp.parameters(), 1.0, torch.tensor(2.0))
        scaler.step(optimizer)
    yield from (value for p in ddp.parameters() for value in p.detach().reshape(-1).tolist())


def drive():
    """What a script gets from all its calls."""
    torch.manual_seed(RANK)
    ddp = DDP(torch.nn.Linear(4, 3))
    yield from train(ddp)
    yield from train(Watched(torch.nn.Linear(4, 2)))
    hooked = DDP(torch.nn.Linear(4, 2))
    hooked.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future()
                              .then(lambda done: done.value()[0] / RANKS))  # fmt: skip
    yield from train(hooked, 3)
    for is_training in (True, False):
        with torch.no_grad():
            yield ddp.train(is_training)(torch.ones(1, 4)).sum().item()
    ddp.train()
    ddp.zero_grad()
    for wrong in (lambda: ddp(torch.ones(1, 5)), lambda: torch.autograd.backward(torch.ones(1))):
        try:
            wrong()
        except RuntimeError as error:
            yield str(error)
    # A closure's forward, and a backward inside another one.
    leaf = torch.ones(2, requires_grad=True)
    yield torch.utils.checkpoint.checkpoint(torch.sin, leaf, use_reentrant=True).sum().backward()
    yield leaf.grad.tolist()
    torch.save(ddp.state_dict(), written := io.BytesIO())
    yield len(written.getvalue())
    total = torch.ones(1)
    dist.all_reduce(total)
    yield total.item()
    with Join([ddp]):
        for _ in range(2):
            ddp(torch.ones(1, 4)).sum().backward()
    yield [p.grad.tolist() for p in ddp.parameters()]
    gc.collect()
    # Compiled anew in each drive: torch keeps what it has compiled by the code.
    new = eval(compile("lambda x: x + 1", "<new>", "eval"))
    yield torch.compile(new, backend="eager")(torch.ones(1)).item()
    torch.multiprocessing.start_processes(nothing, nprocs=1, start_method="fork")


def list_codes(module):
    """Every function that is written there."""
    plain = [getattr(value, "__wrapped__", value) for value in vars(module).values()]
    functions = [value for value in plain if isinstance(value, types.FunctionType)]
    left = [function.__code__ for function in functions if function.__module__ == module.__name__]
    while left:
        code = left.pop()
        yield code
        left += [each for each in code.co_consts if isinstance(each, types.CodeType)]


def note_calls(function, *modules):
    """The functions of these modules that were not called meanwhile."""
    called = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    codes = {code for module in modules for code in list_codes(module)}
    return sorted(f"{Path(code.co_filename).name}:{code.co_name}" for code in codes - called)


def break_all(expected, folder):
    broken, found = Broken(), []
    broken_guard = guard.stand_before(broken)

    def run():
        patches.install_patches()
        dist.destroy_process_group()
        current.set_current(broken_guard)
        with contextlib.suppress(Exception):  # in a Python that has it
            import torch._dynamo
        dist.init_process_group(
            "gloo", store=dist.FileStore(f"{folder}/again", RANKS), rank=RANK, world_size=RANKS
        )
        found.extend(drive())
        broken_guard.end_step(3)
        hooks.watch_sharded(torch.nn.Linear(1, 1))
        dist.destroy_process_group()

    missed = note_calls(run, patches, hooks, collectives)
    current.set_current(None)
    assert found == expected, list(zip(found, expected, strict=False))
    print("not called:", missed, flush=True)
    print("not told:", sorted({*guard.list_signals()} - broken.told), flush=True)


def break_each(expected):
    patches.install_patches()
    for name in guard.list_signals():
        print("breaking:", name, flush=True)
        for ranks in ((0, 1), (1,)) if name in ALONE else ((0, 1),):
            environment = Environment(
                RANK, RANKS, RANK, RANKS, None, None, f"{name}-{len(ranks)}", 0, None,
                strategy={"changes": {"num_threads": 1}},
            )  # fmt: skip
            runtime = Runtime(environment)

            def fail(*_, name=name):
                raise Ours(name)

            if RANK in ranks:
                setattr(runtime, name, fail)
            current.set_current(guard.stand_before(runtime))
            found = list(drive())
            current.set_current(None)
            assert found == expected, (name, ranks, list(zip(found, expected, strict=False)))


dist.init_process_group("gloo")
torch.set_num_threads(1)
expected = list(drive())
assert expected == list(drive())
break_all(expected, os.environ["OUT"]) if "--all" in sys.argv else break_each(expected)
