"""A training whose gain under one knob is known: its step is longer while the baseline's collector is on.

    torchrun --nproc-per-node 2 benchmarks/workloads/injected_gain.py --gain 0.03 [--luck 0.01]

A real DistributedDataParallel training of a small network. While Python's own garbage collector is on, which is what
the baseline has, every step also computes for `gain` times the usual step; under `num_iteration_per_drop_scope` (the
collector runs between steps, and is off inside them) it does not. So the true throughput ratio of that knob is about
1 + gain: with everything older frozen, a collection takes microseconds. It computes and does not sleep: a rank that
sleeps for 0.3 ms makes the rest of the step 10 % faster on two shared cores, without any advisor. With `--luck` each
launch draws one extra factor of that standard deviation for one of the two sides: a launch effect that no race inside
the launch can see.
"""

import argparse
import gc
import os
import random
import time
from statistics import fmean, median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_LATE = 100_000
"""New objects for which Python's collector waits while the knob is in force."""
_CALIBRATING = 50
"""Steps after which the usual step is told anew: a machine's pace changes, and the injected share is to stay."""


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gain", type=float, default=0.0)
    parser.add_argument("--luck", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1_000_000)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = arguments.width
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(arguments.batch, width)
    # All ranks of a launch share its port, and no two launches in a row do.
    dice = random.Random(f"{os.environ['MASTER_PORT']}/{os.environ.get('TORCHELASTIC_RUN_ID')}")
    luck = dice.gauss(0.0, arguments.luck) if arguments.luck else 0.0
    # What lives by now is never looked at again: the knob's own collections cost next to nothing.
    gc.collect()
    gc.freeze()
    recent: list[float] = []
    step_s = 0.0
    for _ in range(arguments.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        recent.append(time.perf_counter() - start)
        if len(recent) == _CALIBRATING:
            limit = 1.5 * median(recent)
            typical = torch.tensor(fmean(min(own, limit) for own in recent))
            dist.all_reduce(typical)
            step_s, recent = float(typical) / dist.get_world_size(), []
        # The luck lengthens whichever side it is against, because nothing works for less than no time.
        share = arguments.gain + max(0.0, luck) if gc.get_threshold()[0] < _LATE else max(0.0, -luck)
        if share:
            wake = time.perf_counter() + share * step_s
            while time.perf_counter() < wake:
                continue
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
