"""A DistributedDataParallel training of linear layers or convolutions, as large as a check needs it.

It can fill the card's memory beforehand, write a digest of its state at every forward, the card's memory after every
step, its step times, and record its first steps with torch.profiler.
"""

import argparse
import hashlib
import os
import time

import torch
from placement import Notes, join, leave, settle
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda")
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument(
    "--image", type=int, default=0, help="edge of the images: convolutions in place of linear layers"
)
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument(
    "--fill", type=float, default=0.0, help="share of the card's memory that rank 0 fills beforehand"
)
parser.add_argument(
    "--digests", action="store_true", help="note what model and optimizer hold before each step"
)
parser.add_argument("--memory", action="store_true", help="note what the allocator holds after each step")
parser.add_argument(
    "--times", action="store_true", help="note how long each step took, the device's work included"
)
parser.add_argument(
    "--trace-steps", type=int, default=0, help="record that many first steps with torch.profiler"
)


def build(arguments: argparse.Namespace) -> nn.Module:
    width = arguments.width
    if not arguments.image:
        layers = [part for _ in range(arguments.layers) for part in (nn.Linear(width, width), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(width, 1))
    layers = [
        part
        for _ in range(arguments.layers)
        for part in (nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    ]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1)
    )


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    states = [value for state in optimizer.state.values() for value in state.values()]
    for tensor in [*model.state_dict().values(), *states]:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def fill(share: float, device: torch.device) -> torch.Tensor:
    """Take what is missing until so much of the card's memory is in use."""
    free, total = torch.cuda.mem_get_info(device)
    return torch.empty(max(0, int(free - (1 - share) * total)), dtype=torch.uint8, device=device)


def main() -> None:
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device, notes = join(arguments.device), Notes()
    torch.manual_seed(0)
    model = build(arguments).to(device)
    shape = (arguments.batch, 3, arguments.image, arguments.image) if arguments.image else (
        arguments.batch, arguments.width)  # fmt: skip
    inputs = torch.randn(*shape, device=device)
    ddp = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if arguments.digests:
        model.register_forward_pre_hook(lambda *_: notes.write(digest=digest(model, optimizer)))

    def step() -> None:
        with torch.profiler.record_function("check.forward"):
            loss = ddp(inputs).square().mean()
        loss.backward()
        with torch.profiler.record_function("check.optimizer"):
            optimizer.step()
        optimizer.zero_grad()

    filling = None
    profiler = torch.profiler.profile() if arguments.trace_steps else None
    if profiler is not None:
        profiler.start()
    for number in range(arguments.steps):
        if number == 1 and arguments.fill and int(os.environ["RANK"]) == 0:
            filling = fill(arguments.fill, device)
        began = time.perf_counter()
        with torch.profiler.record_function("check.step"):
            step()
        if arguments.times:
            settle(device)
            notes.write(step_s=time.perf_counter() - began)
        if arguments.memory:
            free, total = torch.cuda.mem_get_info(device)
            notes.write(reserved=torch.cuda.memory_reserved(device), free=free, total=total)
        if profiler is not None and number + 1 == arguments.trace_steps:
            settle(device)
            profiler.stop()
            if int(os.environ["RANK"]) == 0:
                profiler.export_chrome_trace(os.path.join(os.environ["OUT"], "trace.json"))
            profiler = None
    del filling
    leave()


if __name__ == "__main__":
    main()
