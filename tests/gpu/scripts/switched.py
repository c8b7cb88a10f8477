"""Trains with the runtime in front, switches it off and on between stretches of steps, and notes their step times.

The order changes from pair to pair (off on, on off, …), so that a drifting machine harms both alike.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from placement import Notes, join, settle
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument(
    "--step-ms", type=float, default=5.0, help="what a step without communication takes at least"
)
parser.add_argument("--stretches", type=int, default=120)
parser.add_argument("--steps", type=int, default=25, help="steps of a stretch")
WARM_UP_STEPS = 60
"""Before the first stretch: the runtime's hello, its instruction and its own warm-up lie in them."""
LARGEST_BATCH = 2**18


def choose_inputs(model: nn.Module, width: int, step_s: float, device: torch.device) -> torch.Tensor:
    """A batch so large that forward and backward take that long on the slowest rank."""
    batch = 16
    while True:
        inputs, laps = torch.randn(batch, width, device=device), []
        for _ in range(5):
            began = time.perf_counter()
            model(inputs).square().mean().backward()
            settle(device)
            laps.append(time.perf_counter() - began)
        slowest = torch.tensor([statistics.median(laps)], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if slowest.item() >= step_s or batch >= LARGEST_BATCH:
            model.zero_grad()
            return inputs
        batch *= 2


def main() -> None:
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device, notes = join(arguments.device), Notes()
    current = sys.modules["fleet_advisor_runtime.current"]
    runtime = current.current_runtime
    width = arguments.width
    layers = [part for _ in range(arguments.layers) for part in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(device)
    inputs = choose_inputs(model, width, arguments.step_ms / 1e3, device)
    ddp = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        began = time.perf_counter()
        loss = ddp(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        settle(device)
        return time.perf_counter() - began

    for _ in range(WARM_UP_STEPS):
        step()
    for stretch in range(arguments.stretches):
        is_on = stretch % 4 in (1, 2)
        current.set_current(runtime if is_on else None)
        step()
        notes.write(on=is_on, step_s=[step() for _ in range(arguments.steps)])
    race = runtime.runtime._steering._race
    notes.write(measured=race is not None and race.steps_done >= arguments.steps)
    current.set_current(None)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
