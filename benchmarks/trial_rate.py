"""Trials a minute: one warm session against a relaunch for every trial. Same trials, same run, real torchrun.

    python benchmarks/trial_rate.py [--trials 10] [--steps 20] [--repeats 2]

Both ways measure the same strategies of hot knobs with blocks of the same length through the real runtime; only the
number of launches differs. The two ways take turns, so that a drifting machine harms both alike.
"""

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "agent" / "runtime" / "launch.py"
WORKLOAD = ROOT / "agent" / "workloads" / "decoder.py"
SIZE = ["--width", "128", "--layers", "2", "--vocabulary", "2048"]

STRATEGIES = [
    {},
    {"fuse_grad_size_in_MB": 1.0, "last_comm_group_size_MB": 1.0},
    {"fuse_grad_size_in_MB": 8.0},
    {"fuse_all_reduce_ops": False},
    {"nccl_comm_num": 2},
    {"sync_nccl_allreduce": True},
    {"fp16_allreduce": True},
    {"localsgd": True, "localsgd_k_steps": 4},
    {"fuse_grad_size_in_MB": 2.0, "last_comm_group_size_MB": 2.0},
    {"fuse_grad_size_in_MB": 4.0, "nccl_comm_num": 2},
]


def serve_blocks(listener: socket.socket, strategies: list[dict], steps: int, results: list[dict]) -> None:
    """Play the agent: hand out one block per strategy, then the end."""
    connection, _ = listener.accept()
    waiting = list(enumerate(strategies))
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            message = json.loads(line)
            if message["kind"] == "block":
                results.append(message["result"])
            if message["kind"] not in {"hello", "block"}:
                continue
            if waiting:
                number, overrides = waiting.pop(0)
                reply = {
                    "kind": "measure", "block_id": str(number), "overrides": overrides, "warmup_steps": 5,
                    "min_steps": steps, "max_steps": steps, "target_s": 0.001, "profile_steps": 0,
                }  # fmt: skip
            else:
                reply = {"kind": "end", "reason": "all trials measured"}
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()


def run_session(strategies: list[dict], steps: int, nproc: int) -> list[dict]:
    """Launch once and measure `strategies` in that launch; return the block results."""
    directory = Path(tempfile.mkdtemp(prefix="fa-rate-"))
    path = directory / "control"
    results: list[dict] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        server = threading.Thread(
            target=serve_blocks, args=(listener, strategies, steps, results), daemon=True
        )
        server.start()
        environment = os.environ | {
            "ADVISOR_TUNING": "1",
            "ADVISOR_SESSION_DIR": str(directory),
            "ADVISOR_CONTROL": str(path),
            "ADVISOR_SESSION": "benchmark",
            "OMP_NUM_THREADS": "1",
        }
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(nproc),
        ]
        done = subprocess.run(
            [*launcher, str(LAUNCH), str(WORKLOAD), *SIZE], env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    shutil.rmtree(directory, ignore_errors=True)
    if done.returncode != 0 or len(results) != len(strategies):
        raise SystemExit(f"the session failed (exit {done.returncode}):\n{done.stderr[-3000:]}")
    unproven = [result["not_consumed"] for result in results if result["not_consumed"]]
    if unproven:
        raise SystemExit(f"knobs that nothing consumed: {unproven}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a trial")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--nproc-per-node", type=int, default=2)
    arguments = parser.parse_args()
    strategies = [STRATEGIES[i % len(STRATEGIES)] for i in range(arguments.trials)]

    rates: dict[str, list[float]] = {"warm": [], "relaunch": []}
    for repeat in range(arguments.repeats):
        for way in ("warm", "relaunch") if repeat % 2 == 0 else ("relaunch", "warm"):
            began = time.perf_counter()
            if way == "warm":
                run_session(strategies, arguments.steps, arguments.nproc_per_node)
            else:
                for strategy in strategies:
                    run_session([strategy], arguments.steps, arguments.nproc_per_node)
            elapsed = time.perf_counter() - began
            rates[way].append(60 * len(strategies) / elapsed)
            print(
                f"repeat {repeat + 1} {way:9} {elapsed:7.1f} s {rates[way][-1]:7.1f} trials/min", flush=True
            )
    ratios = [warm / relaunch for warm, relaunch in zip(rates["warm"], rates["relaunch"], strict=True)]
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {arguments.nproc_per_node} ranks, "
        f"{arguments.trials} trials of {arguments.steps} steps"
    )
    print(
        f"warm {statistics.median(rates['warm']):.1f} trials/min, relaunching "
        f"{statistics.median(rates['relaunch']):.1f} trials/min: {statistics.median(ratios):.1f} times as many "
        f"(repeats: {', '.join(f'{ratio:.1f}' for ratio in ratios)})"
    )


if __name__ == "__main__":
    main()
