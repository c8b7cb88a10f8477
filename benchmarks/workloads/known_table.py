"""A training whose step lasts what a table says of its options: it sleeps beside a little computing, dies or hangs.

The table is a JSON file: the options' names, and for each combination of their values milliseconds, `die` or `hang`.
With `--steps` it ends after so many and prints a step's mean, as a tuner that relaunches reads it.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

table = json.loads(Path("table.json").read_text())
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0)
for option in table["names"]:
    parser.add_argument(f"--{option}")
asked = parser.parse_args()
lasts = table["lasts"][",".join(getattr(asked, option) for option in table["names"])]
if lasts == "die":
    sys.exit("this combination does not run")
if lasts == "hang":
    time.sleep(100_000)

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
done, began = 0, time.perf_counter()
while not asked.steps or done < asked.steps:
    if done == 5:
        began = time.perf_counter()
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    time.sleep(lasts / 1e3)
    optimizer.step()
    done += 1
if dist.get_rank() == 0:
    print(f"step_ms {(time.perf_counter() - began) * 1e3 / max(1, done - 5):.3f}")
dist.destroy_process_group()
