"""A gang of two agents runs an unchanged shell script: its torchrun finds the other node, and nothing in it goes on."""

import os
import sys
from pathlib import Path

import pytest

from advisor.protocol.training.workload import Workload
from agent.settings import RUNTIME_SCRIPT

pytestmark = pytest.mark.distributed

PATIENCE_S = 240.0
"""Two nodes' three starts of Python with torch, beside other tests that start as many."""

DDP_SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
print("I am", dist.get_rank(), end="", flush=True)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(os.environ["STEPS"])):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""

PREPARES = """
python -c "import torch.distributed; print('prepared')"
"""
TRAINS = """
torchrun --nproc-per-node 1 train.py
echo evaluating
"""


@pytest.fixture
def make_job(tmp_path):
    def make(script, steps):
        folder = tmp_path / "project"
        folder.mkdir()
        (folder / "train.py").write_text(DDP_SCRIPT)
        (folder / "run.sh").write_text(script)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return Workload(
            command=("bash", "run.sh"),
            working_dir=str(folder),
            environment={"PATH": path, "STEPS": str(steps)},
        )

    return make


def test_torchrun_inside_a_shell_script_joins_the_gang(
    agents, server, session_id, make_job, wait_for, list_session_processes
):
    for name in ("a0", "a1"):
        agents.start(name, runtime_script=RUNTIME_SCRIPT, startup_timeout_s=PATIENCE_S)
    session = server.assign(session_id, make_job(PREPARES + TRAINS, 1_000_000), ("a0", "a1"), plans=2)
    wait_for(lambda: len(session.ends) == 2, timeout_s=PATIENCE_S)
    assert [end["outcome"] for end in session.ends] == ["finished", "finished"], session.ends
    assert session.hellos[0]["facts"]["world_size"] == 2
    assert session.hellos[0]["facts"]["local_world_size"] == 1
    assert sorted(session.blocks) == ["b0", "b1"]
    lines = session.log.splitlines()
    assert lines.count("prepared") == 2
    assert {"[rank 0] I am 0", "[rank 1] I am 1"} <= set(lines), session.log
    assert "evaluating" not in session.log
    assert list_session_processes(session_id) == []


def test_script_that_ends_by_itself_is_told_and_what_comes_after_it_is_not_run(
    agents, server, session_id, make_job, wait_for, list_session_processes
):
    agents.start("a0", runtime_script=RUNTIME_SCRIPT, startup_timeout_s=PATIENCE_S)
    session = server.assign(session_id, make_job(TRAINS, 60), ("a0",), plans=1000)
    wait_for(lambda: session.ends, timeout_s=PATIENCE_S)
    troubles = [end["trouble"]["code"] for end in session.ends if end["trouble"]]
    assert troubles == ["script_ended"], session.ends
    assert "evaluating" not in session.log
    assert list_session_processes(session_id) == []
