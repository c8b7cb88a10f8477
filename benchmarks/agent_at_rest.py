"""What an agent costs its node: registered to a real server at rest, and while it samples made-up GPUs in a session.

CPU time is the kernel's account (user and system) of the agent's own process and of its NVML reader, over the wall
time; memory is what nobody shares with them (USS), and what they have in memory in all (RSS). The ranks of the session
and their guard process do not count: they are the training's.

    python benchmarks/agent_at_rest.py --seconds 60
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from advisor.client import Client  # noqa: E402
from advisor.local.server import local_server  # noqa: E402
from advisor.protocol.asked.jobs import JobSpec, Measurement  # noqa: E402
from advisor.protocol.training.workload import Workload  # noqa: E402
from tests.fake_nvml import FakeNvml  # noqa: E402

TRAINING = """
import time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)
"""
AT_REST, SAMPLING, MEMORY = 0.01, 0.03, 80e6


@dataclass(frozen=True)
class Cost:
    """What the agent's processes used in one stretch of time."""

    cpu_share: float
    """Of one core."""
    uss_bytes: int
    rss_bytes: int
    wall_s: float


def wait_until(what: Callable[[], object], sentence: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit(f"It did not happen within {timeout_s:.0f} s that {sentence}.")
        time.sleep(0.1)


def find_readers(agent: psutil.Process) -> list[psutil.Process]:
    return [child for child in agent.children() if "agent.devices.gpu_child" in child.cmdline()]


def measure(agent: psutil.Process, seconds: float) -> Cost:
    counted = [agent, *find_readers(agent)]
    before, began = [read_cpu_s(process) for process in counted], time.monotonic()
    time.sleep(seconds)
    used = sum(read_cpu_s(process) - cpu for process, cpu in zip(counted, before, strict=True))
    wall_s = time.monotonic() - began
    memory = [process.memory_full_info() for process in counted]
    return Cost(used / wall_s, sum(m.uss for m in memory), sum(m.rss for m in memory), wall_s)


def read_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def describe(what: str, cost: Cost, limit: float) -> str:
    verdict = "within" if cost.cpu_share < limit else "ABOVE"
    return (
        f"{what:34} {cost.cpu_share:6.2%} of one core over {cost.wall_s:3.0f} s ({verdict} {limit:.0%}), "
        f"USS {cost.uss_bytes / 1e6:.1f} MB, RSS {cost.rss_bytes / 1e6:.1f} MB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--hz", type=float, default=10.0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fa-rest-"))
    (folder / "train.py").write_text(TRAINING)
    fake = FakeNvml(folder, count=arguments.gpus)
    scripts = str(Path(sys.executable).parent)
    environment = fake.environment | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    try:
        with (
            local_server(folder / "data", environment, print) as server,
            Client(server.url, server.token) as client,
        ):
            words = ["--server", server.url, "--name", "a0", "--token-file", str(server.agent_token_file)]
            words += [
                "--work-dir",
                str(folder / "agent"),
                "--telemetry-hz",
                str(arguments.hz),
                "--allow-root",
                "/",
            ]
            log = open(folder / "agent.log", "wb")  # noqa: SIM115
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent", "run", *words], env=environment, stdout=log, stderr=log
            )
            try:
                return measure_agent(psutil.Process(process.pid), client, folder, arguments)
            finally:
                process.terminate()
                process.wait(timeout=60)
                log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_agent(agent: psutil.Process, client: Client, folder: Path, arguments: argparse.Namespace) -> int:
    wait_until(client.agents, "the agent registers")
    wait_until(lambda: not find_readers(agent), "the agent has looked at its GPUs")
    time.sleep(5)  # what the start leaves to do
    at_rest = measure(agent, arguments.seconds)
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    )
    print(describe("registered, at rest", at_rest, AT_REST), flush=True)

    command = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    # One block that lasts longer than we look: no launch in between.
    spec = JobSpec(
        workload=Workload(command=command, working_dir=str(folder)),
        measurement=Measurement(block_s=min(600.0, arguments.seconds + 60), max_steps=100_000),
    )
    job = client.submit_job(spec, idempotency_key="at-rest")
    wait_until(lambda: client.history(job.id).blocks, "a block is being measured")
    samples_before = count_samples(client, job.id)
    sampling = measure(agent, arguments.seconds)
    samples = count_samples(client, job.id) - samples_before
    print(describe(f"sampling {arguments.gpus} GPUs at {arguments.hz:g} Hz", sampling, SAMPLING))
    print(f"{samples} samples came ({samples / sampling.wall_s:.1f} a second).")
    client.cancel_job(job.id)
    fits = at_rest.cpu_share < AT_REST and sampling.cpu_share < SAMPLING and at_rest.rss_bytes < MEMORY
    print(f"At rest within {MEMORY / 1e6:.0f} MB (RSS): {'yes' if at_rest.rss_bytes < MEMORY else 'NO'}.")
    return 0 if fits else 1


def count_samples(client: Client, job_id: str) -> int:
    return len(client.telemetry(job_id))


if __name__ == "__main__":
    sys.exit(main())
