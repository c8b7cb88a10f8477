"""`advisor-agent exec --run`: the script runs once as it stands, and nothing of it is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.calm]

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def execute(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(steps: int, *options: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        torchrun = ["torchrun", "--nproc-per-node", "2", "train.py", str(steps)]
        command = [sys.executable, "-P", "-m", "agent", "exec", "--run", *options, "--", *torchrun]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def test_run_says_how_fast_the_script_is_and_what_can_be_tuned(execute):
    found = execute(1_000_000, "--json", "--samples-per-step", "4")
    assert found.returncode == 0, found.stderr
    preview, rehearsed = map(json.loads, found.stdout.splitlines())
    assert preview["environment"]["ADVISOR_SAMPLES_PER_STEP"] == "4"
    result = rehearsed["result"]
    assert result["steps"] >= 20
    assert result["samples_per_step"] == 8
    assert rehearsed["tunable"]["fuse_grad_size_in_MB"] == 25
    assert "two levels" in rehearsed["refused"]["use_hierarchical_allreduce"]
    assert rehearsed["facts"]["world_size"] == 2


def test_run_says_why_nothing_was_measured(execute):
    found = execute(2)
    assert found.returncode == 1
    assert "Nothing was measured: The script ended after 2 training steps" in found.stdout
