"""Does an arm of a race run as fast as it does alone? Gains that are known, in turns of several lengths.

    python benchmarks/race_against_alone.py [--cases threads,waits,loader,prefetcher,narrow] [--launches 6]
        [--seconds 4] [--segments 5,20,60] [--output docs/results/race_against_alone.md]

In every launch of `benchmarks/workloads/known_gains.py` both strategies run alone, in one go, and race each other in
turns of each length, in random order; the next launch has the reverse order. The truth of a launch is the ratio of the
wall times a step of its two runs alone. Of each race its four ratios are held against that: by steps capped at 1.5
times the median of their own arm, by steps capped at the same excess in seconds over it, by the sum of the step times,
and by the wall times of the ranks; and each arm's rate against its own alone. In % of ln, with the standard error over
the launches. Run it alone on the machine; the same command with an `--output` that exists adds its rows to it.
"""

import argparse
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sessions import ROOT, Ranks, run_session

_SCRIPT = str(ROOT / "benchmarks" / "workloads" / "known_gains.py")
_COLLECTOR: Mapping[str, Any] = {"num_iteration_per_drop_scope": 1_000}
_SMALL = ("--width", "16", "--batch", "4")
CASES: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any], str]] = {
    "threads": (
        ("threads", "--width", "256", "--steady", "0.03"),
        {"num_threads": 1},
        "two threads a rank → one",
    ),
    "waits": (
        ("waits", "--steady", "0.01", "--wait", "0.005"),
        _COLLECTOR,
        "15 → 10 ms of waiting in the forward",
    ),
    "loader": (
        ("loader", *_SMALL, "--steady", "0.020", "--wait", "0.020", "--read", "0.030"),
        _COLLECTOR,
        "a DataLoader's queue of 8: the strategy could be twice as fast, the loader lets it be 1.4 times",
    ),
    "narrow": (
        ("loader", *_SMALL, "--steady", "0.080", "--wait", "0.008", "--read", "0.0865"),
        _COLLECTOR,
        "the same: it could be 10 % faster, the loader lets it be 3 %",
    ),
    "prefetcher": (
        ("prefetcher", *_SMALL, "--steady", "0.020", "--wait", "0.020", "--read", "0.030"),
        _COLLECTOR,
        "a queue of 8 that the advisor does not see",
    ),
}
_EATEN = 150
"""Untimed steps of an arm alone where batches are read ahead: what the arm before has left is eaten within."""
_CAP = 1.5
_ALONE = ("alone a", "alone b")

Row = dict[str, float]


def main() -> None:
    """Run all cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each arm in each block")
    parser.add_argument("--segments", default="5,20,60")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    segments = arguments.segments.split(",")
    lines = [
        "| case | turns | launches | truth | told: own cap | equal excess | total | wall | a: race / alone | b |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in arguments.cases.split(","):
        rows = []
        for number in range(arguments.launches):
            rows.append(measure(case, number, segments, arguments.seconds))
            print(case, {name: f"{100 * value:+.1f}" for name, value in rows[-1].items()}, flush=True)
        for segment in segments:
            cells = [
                describe([row[f"{segment} {name}"] for row in rows])
                for name in ("cap", "excess", "total", "wall", "a", "b")
            ]
            truth = math.exp(statistics.fmean(row["truth"] for row in rows))
            lines.append(f"| {case} | {segment} | {len(rows)} | {truth:.4f} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if arguments.output:
        title = "" if arguments.output.exists() else "# A race against its arms alone\n\n"
        command = "python benchmarks/race_against_alone.py " + " ".join(sys.argv[1:])
        with arguments.output.open("a") as file:
            file.write(
                f"{title}`{command}`\n\n{platform.platform()}, {os.cpu_count()} cores, Python "
                f"{platform.python_version()}, {time.strftime('%Y-%m-%d')}\n\n" + "\n".join(lines) + "\n\n"
            )


def measure(case: str, number: int, segments: Sequence[str], seconds: float) -> Row:
    """What one launch shows: the truth, and how far each race is from it, in ln."""
    words, changes, _ = CASES[case]
    order = [*_ALONE, *segments]
    random.Random(f"{case}/{number // 2}").shuffle(order)
    order = order[::-1] if number % 2 else order
    rules = {"warmup_steps": 5, "min_steps": 4, "max_steps": 10**6, "profile_steps": 0, "target_s": seconds}
    blocks: list[Mapping[str, Any]] = [
        {
            **rules,
            "warmup_steps": 20 if words[0] in ("threads", "waits") else _EATEN,
            "overrides": changes if block == "alone b" else {},
        }
        if block in _ALONE
        else {**rules, "arms": {"a": {}, "b": changes}, "segment_steps": int(block)}
        for block in order
    ]
    # Two threads a rank are what the script of the first case asks for.
    threads = {"OMP_NUM_THREADS": "2" if case == "threads" else "1"}
    found = dict(zip(order, run_session((_SCRIPT, *words), blocks, Ranks(), threads), strict=True))
    a_s, b_s = (found[block]["wall_s"] / found[block]["steps"] for block in _ALONE)
    row = {"truth": math.log(a_s / b_s)}
    for segment in segments:
        first, second = found[segment]["a"], found[segment]["b"]
        for name, ratio in compare(first["step_time_s"], second["step_time_s"]).items():
            row[f"{segment} {name}"] = ratio - row["truth"]
        walls = [arm["wall_s"] / arm["steps"] for arm in (first, second)]
        row[f"{segment} wall"] = math.log(walls[0] / walls[1]) - row["truth"]
        row[f"{segment} a"], row[f"{segment} b"] = math.log(a_s / walls[0]), math.log(b_s / walls[1])
    return row


def compare(first: Sequence[float], second: Sequence[float]) -> Row:
    """The ln ratios of the two arms' mean steps, by what is made of long ones."""
    medians = [statistics.median(times) for times in (first, second)]
    excess = (_CAP - 1.0) * min(medians)
    means = {
        "total": [statistics.fmean(times) for times in (first, second)],
        "cap": [
            statistics.fmean(min(t, _CAP * m) for t in times)
            for times, m in zip((first, second), medians, strict=True)
        ],
        "excess": [
            statistics.fmean(min(t, m + excess) for t in times)
            for times, m in zip((first, second), medians, strict=True)
        ],
    }
    return {name: math.log(one / other) for name, (one, other) in means.items()}


def describe(values: Sequence[float]) -> str:
    """In %, with the standard error of the mean."""
    error = f" ± {100 * statistics.stdev(values) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):+.1f}{error}"


if __name__ == "__main__":
    main()
