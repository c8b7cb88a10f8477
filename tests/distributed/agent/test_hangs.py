"""A rank that hangs is found by its missing beat, and the session's end says where every rank stands."""

import os
import signal

import pytest

from agent.settings import RUNTIME_SCRIPT

pytestmark = pytest.mark.distributed

STUCK_RANKS = """
import os, threading, time
from fake_advisor import Advisor

lock = threading.Lock()
lock.acquire()

def forward(step, rank):
    if rank == 1 and step == 5:
        lock.acquire()  # stuck

def exchange(step, rank):
    while step >= 5:
        time.sleep(0.05)  # waits

def work(rank):
    os.setsid()
    Advisor.stacks.arm(Advisor.directory, rank)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    writer = Advisor.beat.BeatWriter(Advisor.directory, rank)
    for step in range(1, 10):
        forward(step, rank)
        exchange(step, rank)
        writer.write(step, Advisor.beat.TIMING)
        time.sleep(0.05)

for rank in range(2):
    if os.fork() == 0:
        work(rank)
os.wait()
"""

STUCK_DDP_SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Net(torch.nn.Linear):
    def forward(self, batch):
        if dist.get_rank() == 1 and step == 5:
            time.sleep(600)  # stuck
        return super().forward(batch)

step = 0
dist.init_process_group("gloo")
model = DistributedDataParallel(Net(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    model(torch.randn(4, 8)).sum().backward()  # waits
    optimizer.step()
    optimizer.zero_grad()
"""


def _line_of(script, mark):
    return next(n for n, line in enumerate(script.splitlines(), 1) if line.endswith(f"# {mark}"))


def test_end_says_where_each_rank_stands(agents, server, session_id, make_workload, wait_for):
    agents.start()
    session = server.assign(session_id, make_workload(STUCK_RANKS), ("a0",), hang_timeout_s=1.0)
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "hung"
    assert f"Rank 1 is in train.py:{_line_of(STUCK_RANKS, 'stuck')} (forward)." in end["reason"]
    assert f"Rank 0 is in train.py:{_line_of(STUCK_RANKS, 'waits')} (exchange)." in end["reason"]
    assert "Stacks of rank 0" in end["log_tail"]
    assert "Stacks of rank 1" in end["log_tail"]


def test_ranks_of_torchrun_tell_where_they_are(agents, server, session_id, make_workload, wait_for):
    agents.start(runtime_script=RUNTIME_SCRIPT)
    launcher = ("torchrun", "--nproc-per-node", "2", "--standalone")
    workload = make_workload(STUCK_DDP_SCRIPT, launcher=launcher)
    session = server.assign(session_id, workload, ("a0",), plans=1000, hang_timeout_s=3.0)
    end = wait_for(lambda: session.ends, timeout_s=90)[0]
    assert end["outcome"] == "hung", end
    stuck, waits = (_line_of(STUCK_DDP_SCRIPT, mark) for mark in ("stuck", "waits"))
    assert f"Rank 1 is in train.py:{stuck} (forward)" in end["reason"]
    assert f"Rank 0 is in train.py:{waits} (<module>), which waits in torch/" in end["reason"]


def test_start_that_hangs_tells_where(agents, server, session_id, make_workload, wait_for):
    script = """
import time
from fake_advisor import Advisor
Advisor.stacks.arm(Advisor.directory, 0)
time.sleep(600)
"""
    agents.start(startup_timeout_s=2.0)
    session = server.assign(session_id, make_workload(script), ("a0",))
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "hung"
    assert "Rank 0 is in train.py:5 (<module>)." in end["trouble"]["sentence"]


def test_rank_that_names_a_foreign_process_cannot_have_it_signalled(
    agents, server, session_id, make_workload, wait_for
):
    """The agent asks only descendants for their stacks: for any other process the signal would be deadly."""
    script = f"""
import os, time
from fake_advisor import Advisor
open(os.path.join(Advisor.directory, "stacks.0.{os.getpid()}"), "w").close()
os.mkfifo(os.path.join(Advisor.directory, "stacks.1.%d" % os.getpid()))
os.mkfifo(os.path.join(Advisor.directory, "beat.7"))
writer = Advisor.beat.BeatWriter(Advisor.directory, 0)
writer.write(1, Advisor.beat.TIMING)
import signal
signal.signal(Advisor.stacks.choose_signal(), lambda *_: None)
time.sleep(600)
"""
    received = []
    before = signal.signal(signal.SIGRTMIN + 9, lambda *_: received.append("signal"))
    try:
        agents.start()
        session = server.assign(session_id, make_workload(script), ("a0",), hang_timeout_s=1.0)
        end = wait_for(lambda: session.ends)[0]
    finally:
        signal.signal(signal.SIGRTMIN + 9, before)
    assert end["outcome"] == "hung"
    assert "Rank 1 did not tell where it is." in end["reason"]
    assert received == []


def test_ranks_of_the_other_node_tell_where_they_wait(agents, server, session_id, make_workload, wait_for):
    """The node that finds the hang ends the session; the other one captures its ranks before it lets go."""
    script = """
import os, time
from fake_advisor import Advisor

rank = int(os.environ["RANK"])
Advisor.stacks.arm(Advisor.directory, rank)
writer = Advisor.beat.BeatWriter(Advisor.directory, rank)
for step in range(1, 20 - 10 * rank):
    time.sleep(0.1)
    writer.write(step, Advisor.beat.TIMING)
time.sleep(600)
"""
    for name in ("a0", "a1"):
        agents.start(name)
    launcher = ("torchrun", "--nproc-per-node", "1", "--standalone")
    workload = make_workload(script, launcher=launcher)
    session = server.assign(session_id, workload, ("a0", "a1"), hang_timeout_s=3.0)
    wait_for(lambda: len(session.ends) == 2, timeout_s=90)
    assert "hung" in {end["outcome"] for end in session.ends}
    text = " ".join(end["reason"] for end in session.ends)
    assert "Rank 0 is in train.py:11 (<module>)." in text
    assert "Rank 1 is in train.py:11 (<module>)." in text
