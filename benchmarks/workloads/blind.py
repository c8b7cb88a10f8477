"""A training whose step holds a planted cost that nothing but its settings file tells of: the script of blind races.

    python benchmarks/workloads/blind.py a.json                         trains until killed
    python benchmarks/workloads/blind.py a.json --hot b.json            as b.json in steps whose knob `side` is b
    python benchmarks/workloads/blind.py a.json --clock b.json [--seconds 15]

A settings file holds `kind`, `steady_s` (the usual step's cost), `extra` (its planted share of that), `every` (steps
between two stalls), `noise` (standard deviation of ln(cost) from step to step) and `luck` (from launch to launch). All
kinds but `compute` sleep for most of a step, so that several may run side by side. `--clock` prints each file's mean
step in turns within one process, by the script's own clock, without noise and luck: the truth of a long run.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import fleet_advisor
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

_TURN = 12
"""Steps of a turn of `--clock`."""
_READERS = 4


class Cost:
    """What a step costs by one settings file."""

    def __init__(self, settings: dict[str, Any], *, is_still: bool = False) -> None:
        self.kind, self._every = settings["kind"], settings["every"]
        self._dice = random.Random()
        luck, self._noise = (0.0, 0.0) if is_still else (settings["luck"], settings["noise"])
        self._steady_s = settings["steady_s"] * math.exp(luck * self._dice.gauss(0.0, 1.0))
        self._extra = settings["extra"]
        self._pool = ThreadPoolExecutor(_READERS) if self.kind == "threads" else None
        self._matrix = torch.randn(96, 96)
        self._rounds = 1000 * settings["steady_s"] / 0.03
        self._steps = 0

    def spend(self) -> None:
        """Take a step's time."""
        usual_s = self._steady_s * math.exp(self._noise * self._dice.gauss(0.0, 1.0))
        self._steps += 1
        if self.kind == "compute":
            # Nothing that a race counts as a training's work: a B with fewer products is other work, and no exact gain.
            for _ in range(round(self._rounds * (1.0 + self._extra))):
                torch.tanh(self._matrix)
        elif self._pool is not None:
            each_s = usual_s * (1.0 + self._extra) / 2.0
            list(self._pool.map(time.sleep, [each_s] * (2 * _READERS)))
        elif self.kind == "allocation":
            time.sleep(usual_s)
            end = time.perf_counter() + usual_s * self._extra
            while time.perf_counter() < end:
                bytearray(1 << 20)
        elif self.kind == "stall":
            is_stall = self._steps % self._every == 0
            time.sleep(usual_s + (self._steady_s * self._extra * self._every if is_stall else 0.0))
        else:
            time.sleep(usual_s * (1.0 + self._extra))


class Chosen(nn.Module):
    """Costs what is in force."""

    def __init__(self, usual: Cost, other: Cost, *, is_hot: bool = False) -> None:
        super().__init__()
        self.usual, self.other, self.is_hot, self.is_other = usual, other, is_hot, False

    def spend(self) -> None:
        """Take a step's time by what is in force."""
        is_b = self.is_other or (self.is_hot and fleet_advisor.knob("side", "a") == "b")
        (self.other if is_b else self.usual).spend()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Spend it here, where a loader does not."""
        if self.usual.kind != "loader":
            self.spend()
        return batch


class Reading(Dataset[torch.Tensor]):
    """Batches whose reading costs the step's time."""

    def __init__(self, batch: torch.Tensor, chosen: Chosen) -> None:
        self._batch, self._chosen = batch, chosen

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._chosen.usual.kind == "loader":
            self._chosen.spend()
        return self._batch


def train(chosen: Chosen) -> Iterator[None]:
    """Train; one step for each that is asked for."""
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(chosen, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Reading(torch.randn(16, 64), chosen), batch_size=None):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        yield


def clock(chosen: Chosen, seconds: float) -> dict[str, float]:
    """Return the ln ratio of both mean steps (first over second), with its standard error over pairs of turns."""
    steps = train(chosen)
    turns: dict[bool, list[float]] = {False: [], True: []}
    dice = random.Random(0)  # every rank has the same order
    next(steps)  # it loads what torch loads late
    end = time.perf_counter() + seconds
    while len(turns[True]) < 4 or _go_on(time.perf_counter() < end):
        for chosen.is_other in dice.sample([False, True], 2):
            start = time.perf_counter()
            for _ in range(_TURN):
                next(steps)
            turns[chosen.is_other].append(time.perf_counter() - start)
    ratio = fmean(turns[False]) / fmean(turns[True])
    apart = [one - ratio * other for one, other in zip(turns[False], turns[True], strict=True)]
    return {
        "mean": math.log(ratio),
        "error": stdev(apart) / math.sqrt(len(apart)) / fmean(turns[False]),
        "step_s": fmean(turns[False]) / _TURN,
    }


def _go_on(wanted: bool) -> bool:
    """What rank 0 wants."""
    told = torch.tensor(float(wanted))
    if dist.is_initialized():
        dist.broadcast(told, 0)
    return bool(told)


def main() -> None:
    """Train until killed, or clock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--hot", type=Path)
    parser.add_argument("--clock", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    is_still = given.clock is not None
    usual, other = (
        Cost(json.loads(path.read_text()), is_still=is_still)
        for path in (given.settings, given.clock or given.hot or given.settings)
    )
    chosen = Chosen(usual, other, is_hot=given.hot is not None)
    if is_still:
        found = clock(chosen, given.seconds)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(json.dumps(found))
        return
    for _ in train(chosen):
        pass


if __name__ == "__main__":
    main()
