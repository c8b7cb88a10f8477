"""How much a second of measuring tells, by the grain at which two strategies take turns.

    python benchmarks/race_grain.py [--repeats 6] [--seconds 6] [--conditions quiet,beside,crowded] \
        [--output docs/results/race_grain.md]

Two strategies race again and again inside one launch of an ordinary training, in random order of the grains: 1, 2, 5,
10, 20, 40 and 80 steps a turn, and blocks of 3 s one after the other as they were measured before there were races.
A race lasts about `--seconds` of wall time. Per grain the spread of the measured ln ratios over the repeats, times the
square root of the seconds that a race took with its untimed steps, is the error that one second of measuring leaves:
smaller is better, and half of it costs a quarter of the time. Two pairs: two real bucket plans, and an A/A pair (the
collector's interval 9,999 and 10,000, which do the same). Three conditions, side by side in one run: the machine as it
is, other work beside it that comes and goes, and ranks with more threads than there are cores.
Steps count with at most 1.5 times the median of their arm, as in the verdict.
"""

import argparse
import math
import os
import platform
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sessions import ROOT, Ranks, run_session

GRAINS = (1, 2, 5, 10, 20, 40, 80)
BLOCK_S = 3.0
"""Seconds of a block of before."""
CAP = 1.5
SCRIPT = (str(ROOT / "benchmarks" / "workloads" / "injected_gain.py"), "--gain", "0", "--width", "256")
PAIRS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "bucket plans": ({"fuse_grad_size_in_MB": 4.0}, {"fuse_grad_size_in_MB": 0.2}),
    "A/A": ({"num_iteration_per_drop_scope": 9_999}, {"num_iteration_per_drop_scope": 10_000}),
}
CONDITIONS = {
    "quiet": "the machine as it is",
    "beside": "other work beside it",
    "crowded": "two threads a rank",
}
_BURSTS = """
import random, time
while True:
    end = time.time() + random.expovariate(1.0)
    while time.time() < end: pass
    time.sleep(random.expovariate(0.7))
"""


def main() -> None:
    """Run all conditions and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0, help="wall time of one race")
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = {
        (condition, pair): measure(condition, pair, arguments.repeats, arguments.seconds)
        for condition in arguments.conditions.split(",")
        for pair in PAIRS
    }
    text = describe(found, arguments)
    print(text)
    if arguments.output:
        arguments.output.write_text(text)


def measure(condition: str, pair: str, repeats: int, seconds: float) -> dict[str, dict[str, float]]:
    """Grain -> its figures, from one launch."""
    dice = random.Random(f"{condition}/{pair}")
    order = [
        grain for _ in range(repeats) for grain in dice.sample([*map(str, GRAINS), "blocks"], len(GRAINS) + 1)
    ]
    crowding = {"num_threads": 2} if condition == "crowded" else {}
    arms = {arm: {**changes, **crowding} for arm, changes in zip("ab", PAIRS[pair], strict=True)}
    rules = {"warmup_steps": 3, "min_steps": 1, "profile_steps": 0}
    asked: list[Mapping[str, Any]] = []
    for grain in order:
        if grain == "blocks":
            block = {
                "warmup_steps": 5,
                "min_steps": 1,
                "max_steps": 10**6,
                "target_s": BLOCK_S,
                "profile_steps": 0,
            }
            pairs = max(1, round(seconds / (2 * BLOCK_S)))
            asked += [
                {**block, "overrides": arms[arm]}
                for turn in range(pairs)
                for arm in "abba"[2 * (turn % 2) :][:2]
            ]
        else:
            asked.append(
                {
                    **rules,
                    "arms": arms,
                    "segment_steps": int(grain),
                    "target_s": seconds / 2,
                    "max_steps": 10**6,
                }
            )
    with work_beside(condition == "beside"):
        results = iter(run_session(SCRIPT, asked, Ranks()))
    ratios: dict[str, list[float]] = defaultdict(list)
    times: dict[str, list[float]] = defaultdict(list)
    for grain in order:
        if grain == "blocks":
            pairs = max(1, round(seconds / (2 * BLOCK_S)))
            blocks = [(arm, next(results)) for turn in range(pairs) for arm in "abba"[2 * (turn % 2) :][:2]]
            of_arm = {arm: [t for a, r in blocks if a == arm for t in r["step_time_s"]] for arm in "ab"}
            spent_s = sum(r["wall_s"] * (1 + r["warmup_steps"] / max(1, r["steps"])) for _, r in blocks)
        else:
            race = next(results)
            of_arm = {arm: race[arm]["step_time_s"] for arm in "ab"}
            lead_ins = 1 / (2 * statistics.fmean(race["a"]["segments"] or [1]))
            spent_s = sum(map(sum, of_arm.values())) * (1 + lead_ins)
        ratios[grain].append(
            math.log(statistics.fmean(cap(of_arm["b"])) / statistics.fmean(cap(of_arm["a"])))
        )
        times[grain].append(spent_s)
    return {
        grain: {
            "ratio": statistics.fmean(ratios[grain]),
            "spread": statistics.stdev(ratios[grain]),
            "per_second": statistics.stdev(ratios[grain]) * math.sqrt(statistics.fmean(times[grain])),
        }
        for grain in ratios
    }


def cap(times: Sequence[float]) -> list[float]:
    """The steps, none longer than 1.5 times their median."""
    limit = CAP * statistics.median(times)
    return [min(time_s, limit) for time_s in times]


@contextmanager
def work_beside(is_on: bool) -> Iterator[None]:
    """One process per core that computes for about a second, and rests for one and a half."""
    processes = [
        subprocess.Popen([sys.executable, "-c", _BURSTS]) for _ in range(os.cpu_count() or 1 if is_on else 0)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def describe(
    found: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]], arguments: argparse.Namespace
) -> str:
    """The page of results."""
    names = [*map(str, GRAINS), "blocks"]
    heads = [f"{name} steps" if name.isdigit() else f"blocks of {BLOCK_S:.0f} s" for name in names]
    lines = [
        "# The grain of a race",
        "",
        f"`python benchmarks/race_grain.py --repeats {arguments.repeats} --seconds {arguments.seconds:g}` on "
        f"{os.cpu_count()} cores ({platform.machine()}), two ranks over gloo.",
        "",
        "Standard error of ln(step time of one / of the other) in % that one second of measuring leaves, untimed steps "
        f"included, from the spread of {arguments.repeats} races (so known to about "
        f"±{100 / math.sqrt(2 * (arguments.repeats - 1)):.0f} % of itself).",
        "",
        "| condition | pair | " + " | ".join(heads) + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    for (condition, pair), grains in found.items():
        cells = [f"{100 * grains[name]['per_second']:.1f}" for name in names]
        lines.append(f"| {CONDITIONS[condition]} | {pair} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "The ratio that each grain found, in %, ± the standard error of its mean: no grain is biased where they agree.",
        "",
    ]
    lines += ["| condition | pair | " + " | ".join(heads) + " |", "|---" * (len(names) + 2) + "|"]
    for (condition, pair), grains in found.items():
        cells = [
            f"{100 * grains[n]['ratio']:+.1f} ± {100 * grains[n]['spread'] / math.sqrt(arguments.repeats):.1f}"
            for n in names
        ]
        lines.append(f"| {CONDITIONS[condition]} | {pair} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
