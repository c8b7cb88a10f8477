"""Kills parts of a two-rank session at seeded moments, and counts the processes that are left after five seconds.

    python benchmarks/kills.py [--seeds 200] [--first 0] [--at-once 2]

Real agents, shims and launchers in processes of their own; a small server hands out the sessions. Every tenth session
is torchrun with two DDP ranks and our runtime; the others are a script that forks two ranks as torchrun does, each
with a helper that escapes by two forks, a session and an environment of its own.
"""

import argparse
import os
import platform
import queue
import statistics
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.distributed.agent.killing import Kill, choose_victim, open_yard  # noqa: E402

DEADLINE_S = 5.0


def strike_all(seeds: list[int], at_once: int) -> list[Kill]:
    """Run every seed, several yards at once; an error of one ends the benchmark."""
    waiting: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
    is_real = {seed: seed // 10 % 10 == 9 for seed in seeds}
    for seed in sorted(seeds, key=lambda seed: is_real[seed]):
        waiting.put((seed, is_real[seed]))
    kills: list[Kill] = []
    failures: list[BaseException] = []

    def work(folder: Path) -> None:
        folder.mkdir()
        try:
            with open_yard(folder) as yard:
                while not failures:
                    try:
                        seed, real = waiting.get_nowait()
                    except queue.Empty:
                        return
                    kill = yard.strike(seed, choose_victim(seed), is_real=real, deadline_s=DEADLINE_S)
                    kills.append(kill)
                    print(
                        f"seed {kill.seed:3} {kill.launcher:8} {kill.victim:27} {kill.struck:2} processes, "
                        f"gone after {kill.gone_after_s:5.2f} s, {kill.left} left",
                        flush=True,
                    )
        except BaseException as error:
            failures.append(error)

    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        threads = [threading.Thread(target=work, args=(Path(folder) / str(n),)) for n in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return kills


def describe(kills: list[Kill]) -> str:
    """Return the counts as a Markdown table."""
    groups: dict[str, list[Kill]] = defaultdict(list)
    for kill in kills:
        groups[kill.victim].append(kill)
    lines = [
        "| struck | sessions | with torchrun | before the launch | median until all were gone, s | longest, s | left |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for victim, group in [*sorted(groups.items()), ("all", kills)]:
        times = [kill.gone_after_s for kill in group]
        lines.append(
            f"| {victim} | {len(group)} | {sum(k.launcher == 'torchrun' for k in group)} | "
            f"{sum(k.struck == 0 for k in group)} | {statistics.median(times):.2f} | {max(times):.2f} | "
            f"{sum(k.left for k in group)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200, help="number of sessions to strike")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--at-once", type=int, default=2, help="agents at work at the same time")
    arguments = parser.parse_args()
    kills = strike_all(list(range(arguments.first, arguments.first + arguments.seeds)), arguments.at_once)
    print(
        f"\n{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {arguments.at_once} agents at once\n"
    )
    print(describe(kills))
    left = sum(kill.left for kill in kills)
    raise SystemExit(f"{left} processes were left after {DEADLINE_S:.0f} s" if left else 0)


if __name__ == "__main__":
    main()
