"""What the runtime's calls cost a step where the processor's caches are cold, as they are between a model's kernels.

    python benchmarks/cold_calls.py [--steps 400]

One process and one rank. What DDP's forward, backward and the optimizer would compute is left out, and 80 MB of memory
are written in their place and between them, so that nothing of Python is left in a cache of less. Timed is what lies
between two such writings, the runtime's calls and torch's own way to them, with the runtime marking every phase and
without one, step by step in turn; reported are the medians' differences. It says how the calls compare from one version
to the next, to a tenth or so, in half a minute and also where others use the machine; what they cost a real training is
`intrusion.py`'s to say.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.runtime import current
from agent.runtime.guard import stand_before
from agent.runtime.inject.patches import install_patches
from agent.runtime.link.environment import Environment
from agent.runtime.observe.clock import CpuClock
from agent.runtime.observe.recorder import BACKWARD, FORWARD, OPTIMIZER
from agent.runtime.runtime import Runtime

PLACES = ("before forward", "after it", "before backward", "after it", "before the optimizer", "after it")
FLUSHED = torch.zeros(20_000_000)
marks: list[float] = []
"""The ends and beginnings of one step's writings."""


def flush() -> None:
    """What a model's kernels do to the caches."""
    marks.append(time.perf_counter())
    FLUSHED.mul_(1.0)
    marks.append(time.perf_counter())


def forward(_ddp: Any, inputs: torch.Tensor) -> torch.Tensor:
    flush()
    return inputs


def backward(_tensors: Any) -> None:
    flush()


class Optimizer(torch.optim.Optimizer):
    """Changes nothing."""

    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        flush()


def time_step(model: Any, optimizer: Any, inputs: torch.Tensor, loss: torch.Tensor) -> list[float]:
    """Seconds at each of `PLACES`."""
    marks.clear()
    flush()
    marks.pop(0)
    model.forward(inputs)
    flush()
    torch.autograd.backward(loss)
    flush()
    optimizer.step()
    flush()
    return [end - start for start, end in zip(marks[::2], marks[1::2], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="half of them without the runtime")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    DistributedDataParallel.forward, torch.autograd.backward = forward, backward
    install_patches()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(Environment(0, 1, 0, 1, folder, None, "", 0, None))
        guarded = stand_before(runtime)
        current.set_current(guarded)
        model = DistributedDataParallel(torch.nn.Linear(8, 1))
        optimizer = Optimizer(model.parameters(), {})
        inputs, loss = torch.randn(64, 8), torch.zeros((), requires_grad=True) * 1.0
        for _ in range(10):
            time_step(model, optimizer, inputs, loss)
        # As inside a turn of a race.
        kept: list[Any] = []
        runtime.recorder.clock = CpuClock()
        runtime.recorder.start()
        runtime.recorder.keep_steps(arguments.steps, kept)
        found: dict[bool, list[list[float]]] = {True: [], False: []}
        for step in range(arguments.steps):
            is_on = step % 4 in (1, 2)
            current.set_current(guarded if is_on else None)
            found[is_on].append(time_step(model, optimizer, inputs, loss))
        current.set_current(None)
        marked = sum({FORWARD, BACKWARD, OPTIMIZER} <= {*step.phases} for step in kept)
        if marked < arguments.steps // 2 - 2:
            raise SystemExit("the runtime was not at work: nothing was measured")
    with_us, without_us = (
        [statistics.median(times) * 1e6 for times in zip(*found[is_on], strict=True)]
        for is_on in (True, False)
    )
    added_us = [own - bare for own, bare in zip(with_us, without_us, strict=True)]
    places = ", ".join(f"{place} {time_us:.1f}" for place, time_us in zip(PLACES, added_us, strict=True))
    print(
        f"{sum(added_us):.1f} µs added to {sum(without_us):.1f}: {places} "
        f"({len(found[True])} steps with the runtime, torch {torch.__version__}, {os.cpu_count()} CPUs)"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
