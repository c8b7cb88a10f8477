"""Two agents on this machine hold a session together: real torchrun, gloo and runtime, an unchanged DDP script."""

import pytest

from agent.settings import RUNTIME_SCRIPT

pytestmark = pytest.mark.distributed

DDP_SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("interface", os.environ["GLOO_SOCKET_IFNAME"], "rank", dist.get_rank(), flush=True)
for step in range(100_000):
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""

LONELY_CRASH = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")
dist.barrier()
"""


@pytest.fixture
def torchrun():
    return ("torchrun", "--nproc-per-node", "1", "--standalone")


def test_gang_measures_every_block(
    agents, server, session_id, make_workload, wait_for, list_session_processes, torchrun
):
    for name in ("a0", "a1"):
        agents.start(name, runtime_script=RUNTIME_SCRIPT)
    workload = make_workload(DDP_SCRIPT, launcher=torchrun)
    session = server.assign(session_id, workload, ("a0", "a1"), plans=2)
    wait_for(lambda: len(session.ends) == 2, timeout_s=90)
    assert [end["outcome"] for end in session.ends] == ["finished", "finished"], session.ends
    assert session.hellos[0]["facts"]["world_size"] == 2
    assert sorted(session.blocks) == ["b0", "b1"]
    result = session.blocks["b1"]
    assert result["steps"] == 5
    assert result["samples_per_step"] == 32
    assert result["phases"]["forward_s"] > 0
    assert "interface lo rank 0" in session.log
    assert "--standalone: replaced" in session.log
    assert max(beat["steps"] or 0 for beat in session.beats) > 10
    assert any(beat["telemetry"]["samples"] for beat in session.beats)
    assert list_session_processes(session_id) == []


def test_gang_ends_with_the_cause_when_one_node_fails(
    agents, server, session_id, make_workload, wait_for, fake_runtime, torchrun
):
    for name in ("a0", "a1"):
        agents.start(name)
    workload = make_workload(LONELY_CRASH, launcher=torchrun)
    session = server.assign(session_id, workload, ("a0", "a1"))
    wait_for(lambda: len(session.ends) == 2, timeout_s=90)
    outcomes = sorted(end["outcome"] for end in session.ends)
    assert outcomes in (["finished", "out_of_memory"], ["crashed", "out_of_memory"])
