"""Run a script under torch's own profiler for some of its steps, and write what shares of them its parts took.

    torchrun --nproc-per-node 2 profiled.py OUTPUT SCRIPT [ARGUMENT …]

Rank 0 writes OUTPUT and ends all ranks: seconds of a step, and the shares of it in which the main thread was in the
profiler's own ranges for the loader, DDP's forward and the optimizer's step, and in a range of ours around backward.
"""

import functools
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, record_function

WARM, ACTIVE = 15, 30
"""Optimizer's steps before the profiled ones, and the profiled ones."""
_RANGES = {
    "data": "enumerate(DataLoader)",
    "forward": "DistributedDataParallel.forward",
    "backward": "a backward pass",
    "optimizer": "Optimizer.step#",
}


class Profiled:
    """The profiled steps of this process."""

    def __init__(self, output: Path) -> None:
        self._output, self._steps, self._began_s = output, 0, 0.0
        self._profile = profile(activities=[ProfilerActivity.CPU])

    def end_step(self, *_: Any) -> None:
        """After each step of an optimizer."""
        self._steps += 1
        if self._steps == WARM:
            self._profile.start()
            self._began_s = time.perf_counter()
        elif self._steps == WARM + ACTIVE:
            seconds = time.perf_counter() - self._began_s
            self._profile.stop()
            if os.environ.get("RANK", "0") == "0":
                self._write(seconds)
            torch.distributed.barrier()
            os._exit(0)

    def _write(self, seconds: float) -> None:
        spent = dict.fromkeys(_RANGES, 0.0)
        for event in self._profile.events() or ():
            for part, name in _RANGES.items():
                if event.name.startswith(name):
                    spent[part] += event.cpu_time_total / 1e6
        told = {"step_s": seconds / ACTIVE, **{part: took / seconds for part, took in spent.items()}}
        self._output.write_text(json.dumps(told))


def main() -> None:
    """Run the script as its own main program."""
    output, script, *rest = sys.argv[1:]
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        with record_function(_RANGES["backward"]):
            original(*args, **kwargs)

    torch.autograd.backward = backward
    register_optimizer_step_post_hook(Profiled(Path(output)).end_step)
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
