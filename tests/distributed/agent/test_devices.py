"""Sessions on nodes whose GPUs fail, whose driver hangs, or that somebody else uses; and a real rank that lags."""

import os
from datetime import UTC, datetime

import pytest

from advisor.protocol.measured.telemetry import FlagKind
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState, Session, SessionState
from advisor.protocol.nodes.cluster import Cluster
from advisor.tuning.measure.stragglers import flag_nodes
from agent.devices.gpus import ChildGpus, Deadlines
from agent.sessions.control import parse_result
from agent.settings import RUNTIME_SCRIPT
from tests.fake_nvml import FakeNvml

pytestmark = pytest.mark.distributed

RANKS = """
import time
from fake_advisor import Advisor

Advisor.stacks.arm(Advisor.directory, 0)
writer = Advisor.beat.BeatWriter(Advisor.directory, 0)
for step in range(1, 100_000):
    writer.write(step, Advisor.beat.TIMING)
    time.sleep(0.05)
"""

LAGGING_RANK = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")

class Lagging(torch.nn.Linear):
    def forward(self, inputs):
        if dist.get_rank() == 1:
            time.sleep(0.05)
        return super().forward(inputs)

model = DistributedDataParallel(torch.nn.Sequential(Lagging(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def fake_nvml(tmp_path) -> FakeNvml:
    return FakeNvml(tmp_path)


@pytest.fixture
def start_on_gpus(agents, fake_nvml):
    def start(**settings: object) -> None:
        deadlines = Deadlines(start_s=30.0, restart_s=1.0, answer_s=1.0)
        gpus = ChildGpus(None, fake_nvml.environment, deadlines=deadlines)
        agents.start(gpus=gpus, telemetry_hz=10, **settings)

    return start


def _wait_for_samples(session, wait_for):
    wait_for(lambda: any(s["devices"] for beat in session.beats for s in beat["telemetry"]["samples"]))


def test_devices_are_sampled_while_the_session_runs(
    start_on_gpus, agents, server, session_id, make_workload, wait_for
):
    start_on_gpus()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    _wait_for_samples(session, wait_for)
    wait_for(lambda: sum(len(beat["telemetry"]["samples"]) for beat in session.beats) > 10)
    agents.stop()
    samples = [s for beat in session.beats for s in beat["telemetry"]["samples"] if s["devices"]]
    assert [device["index"] for device in samples[-1]["devices"]] == [0, 1]
    assert samples[-1]["devices"][0]["sm_active"] == 0.61


def test_lost_gpu_ends_the_session_as_infrastructure(
    start_on_gpus, server, session_id, make_workload, wait_for, fake_nvml
):
    start_on_gpus()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    _wait_for_samples(session, wait_for)
    fake_nvml.change(xids=[[1, 79]], lost=[1])
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "lost"
    assert "GPU 1 is lost" in end["reason"]
    assert end["trouble"] is None  # the job goes on elsewhere


def test_driver_that_hangs_ends_the_session_as_infrastructure(
    start_on_gpus, server, session_id, make_workload, wait_for, fake_nvml
):
    start_on_gpus()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    _wait_for_samples(session, wait_for)
    fake_nvml.change(hang=True)
    end = wait_for(lambda: session.ends, timeout_s=60)[0]
    assert end["outcome"] == "lost"
    assert "NVML does not answer" in end["reason"]
    samples = [s for beat in session.beats for s in beat["telemetry"]["samples"]]
    assert max(sample["gap_s"] for sample in samples) > 1.0
    assert session.beats[-1]["steps"] > 0


def test_session_does_not_start_beside_somebody_else(
    start_on_gpus, server, session_id, make_workload, wait_for, fake_nvml
):
    fake_nvml.change(processes=[{"device": 1, "pid": os.getpid(), "memory_bytes": 2**30}])
    start_on_gpus()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    end = wait_for(lambda: session.ends, timeout_s=60)[0]
    assert end["outcome"] == "lost"
    assert f"process {os.getpid()} of " in end["reason"]
    assert "--allow-busy-gpus" in end["reason"]
    assert not any(beat["steps"] for beat in session.beats)


def test_session_starts_beside_somebody_else_where_that_is_allowed(
    start_on_gpus, server, session_id, make_workload, wait_for, fake_nvml
):
    fake_nvml.change(processes=[{"device": 1, "pid": os.getpid()}])
    start_on_gpus(allow_busy_gpus=True)
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    wait_for(lambda: any(beat["steps"] for beat in session.beats), timeout_s=60)
    assert "Another process computes on the GPUs" in session.log


@pytest.mark.calm
def test_rank_that_lags_is_found_by_its_own_work(agents, server, session_id, make_workload, wait_for):
    agents.start("a0", runtime_script=RUNTIME_SCRIPT)
    launcher = ("torchrun", "--nproc-per-node", "2", "--standalone")
    server_session = server.assign(
        session_id, make_workload(LAGGING_RANK, launcher=launcher), ("a0",), plans=3
    )
    wait_for(lambda: server_session.ends, timeout_s=120)
    results = [parse_result(body) for body in server_session.blocks.values()]
    assert len(results) == 3, server_session.ends
    now = datetime.now(UTC)
    session = Session(
        id="s", job_id="j", generation=1, state=SessionState.RUNNING, agents=("a0",), created_at=now
    )
    blocks = [
        Block(
            id=str(n), session_id="s", trial_number=0, ordinal=n, race=n, state=BlockState.DONE, issued_at=now,
            plan=BlockPlan(block_id=str(n), trial_number=0), result=result,
        )
        for n, result in enumerate(results)
    ]  # fmt: skip
    for result in results:
        assert result.late is not None
        assert (result.late.rank, result.late.part) == (1, "forward_s")
        assert result.per_rank_work_s[1] - result.per_rank_work_s[0] > 0.03
        assert result.phases_rank == 1
        assert result.phases.forward_s > 0.045
        # Both wait for each other, so that their steps tell nothing.
        assert abs(result.per_rank_step_time_s[1] / result.per_rank_step_time_s[0] - 1) < 0.5
    (flag,) = flag_nodes(blocks, (session,), 2, Cluster())
    assert (flag.agent, flag.kind) == ("a0", FlagKind.STRAGGLER)
    assert "Rank 1 on a0" in flag.sentence
