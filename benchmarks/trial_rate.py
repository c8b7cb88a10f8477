"""Trials a minute: one warm session against a relaunch for every trial. Same trials, same run, real torchrun.

    python benchmarks/trial_rate.py [--trials 24] [--steps 20] [--repeats 2]

Both ways measure the same strategies of hot knobs with blocks of the same length through the real runtime; only the
number of launches differs. The two ways take turns, so that a drifting machine harms both alike.
"""

import argparse
import os
import platform
import statistics
import time

from sessions import ROOT, Ranks, run_session

WORKLOAD = ROOT / "agent" / "workloads" / "decoder.py"
SIZE = ["--width", "96", "--layers", "2", "--vocabulary", "2048", "--batch", "4"]
"""The size that `make demo` trains."""

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


def measure(strategies: list[dict], steps: int, nproc: int) -> None:
    """Launch once and measure `strategies` in that launch."""
    blocks = [
        {
            "overrides": overrides, "warmup_steps": 5, "min_steps": steps, "max_steps": steps, "target_s": 0.001,
            "profile_steps": 0,
        }
        for overrides in strategies
    ]  # fmt: skip
    results = run_session([str(WORKLOAD), *SIZE], blocks, Ranks(nproc_per_node=nproc))
    unproven = [result["not_consumed"] for result in results if result["not_consumed"]]
    if unproven:
        raise SystemExit(f"knobs that nothing consumed: {unproven}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24, help="a session's usual number")
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
                measure(strategies, arguments.steps, arguments.nproc_per_node)
            else:
                for strategy in strategies:
                    measure([strategy], arguments.steps, arguments.nproc_per_node)
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
