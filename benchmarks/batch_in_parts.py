"""What `micro_batches` saves and costs: peak memory and CPU seconds of a step in 1, 2, 4 and 8 parts, one rank on CPU.

Each number of parts runs in a process of its own, because a process does not give back what it has taken.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNTIME = Path(__file__).resolve().parents[1] / "agent" / "runtime"
STEPS = 4


def measure(parts: int) -> None:
    """Prints the peak of this process above what the model and its optimizer take, and CPU seconds a step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    launch = importlib.machinery.SourceFileLoader("launch", str(RUNTIME / "launch.py")).load_module()
    launch.load_runtime_package()
    split_forward = importlib.import_module("fleet_advisor_runtime.levers.micro_batches.split_forward")
    memory = importlib.import_module("fleet_advisor_runtime.observe.memory")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = DistributedDataParallel(torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))
    optimizer = torch.optim.Adam(model.parameters())
    splitting, x = split_forward.SplitForward(parts), torch.randn(32, 64, 256)
    device, whole = torch.device("cpu"), DistributedDataParallel.forward

    def step(batch: torch.Tensor) -> None:
        output = splitting.run(whole, model, (batch,), {}) if parts > 1 else model(batch)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(split_forward.CHECKS):
        step(x)
    memory.reset_peak(device)
    before = memory.read_peak_bytes(device)
    start_s = time.process_time()
    for _ in range(STEPS):
        step(x)
    seconds = (time.process_time() - start_s) / STEPS
    peak = (memory.read_peak_bytes(device) - before) / 2**20
    print(f"{parts} {peak:.0f} {seconds:.2f} {splitting.refusal or splitting.describe()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]))
    else:
        for count in (1, 2, 4, 8):
            # So that what is freed is given back at once.
            variables = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
            subprocess.run([sys.executable, __file__, str(count)], check=True, env=variables)
