"""`advisor diagnose`: a script runs once as it stands, its causes are found and counted, and nothing of it is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.calm]

ROOT = Path(__file__).parents[3]
SCRIPT = """
import contextlib, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

steps, cause = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
width = 512 if cause.startswith("accumulate") else 64
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
micro = 4 if cause.startswith("accumulate") else 1

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 10 ** 9
    def __getitem__(self, place):
        if cause == "input":
            time.sleep(0.002)
        return torch.randn(width)

loader = iter(torch.utils.data.DataLoader(Items(), batch_size=8))
for step in range(steps):
    for part in range(micro):
        batch = next(loader)
        defers = cause == "accumulate-well" and part < micro - 1
        with model.no_sync() if defers else contextlib.nullcontext():
            model(batch).square().mean().backward()
    if cause == "own":
        time.sleep(0.02)
    if cause == "late" and rank == 1:
        time.sleep(0.03)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def diagnose(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(steps: int, cause: str, *options: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        torchrun = ["torchrun", "--nproc-per-node", "2", "train.py", str(steps), cause]
        command = [sys.executable, "-P", "-m", "agent", "diagnose", *options, "--", *torchrun]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.mark.parametrize(
    ("cause", "name", "cost_s"),
    [
        ("input", "input", 0.016),
        ("own", "own_code", 0.02),
        ("late", "late_rank", 0.03),
        ("accumulate", "accumulation", None),
    ],
)
def test_dearest_finding_is_the_cause_that_the_script_has(diagnose, cause, name, cost_s):
    found = diagnose(1_000_000, cause, "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    first = told["found"][0]
    assert first["name"] == name, told
    assert first["remedy"]
    assert (told["ranks"], told["rate_unit"]) == (2, "samples/s")
    assert told["steps"] >= 20
    if cost_s is not None:
        assert first["cost_s"] >= 0.9 * cost_s  # a sleep lasts at least as long as it was asked for
    if cause == "accumulate":
        assert "4 times a step" in first["what"]
        assert first["saves_s"] == pytest.approx(0.75 * first["cost_s"])


def test_accumulation_that_defers_the_exchange_is_no_finding(diagnose):
    found = diagnose(1_000_000, "accumulate-well", "--json")
    assert found.returncode == 0, found.stderr
    assert "accumulation" not in [one["name"] for one in json.loads(found.stdout)["found"]]


def test_lines_say_where_the_time_goes_and_how_to_go_on(diagnose):
    found = diagnose(1_000_000, "own", "--samples-per-step", "4")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].startswith("2 ranks · ")
    assert lines[1].startswith("1  ")
    assert "the script's own code between the phases" in lines[1]
    assert lines[-1].startswith(
        "Prove a change:  advisor tune --minutes 10 -- torchrun --nproc-per-node 2 train.py"
    )
    assert len(lines) <= 20


def test_run_says_why_nothing_was_measured(diagnose):
    found = diagnose(2, "own")
    assert found.returncode == 1
    assert "Nothing was measured: The script ended after 2 training steps" in found.stdout
