"""Does `advisor diagnose` account for a step as torch's own profiler does? Scripts that know neither.

    python benchmarks/profiled.py [--scripts ddp_accumulation …]

Each is diagnosed once, and run once under `torch.profiler` (`workloads/profiled.py`), two ranks each. Told are the
shares of a step of rank 0 in reading, forward, backward (with the exchange of gradients and waiting for it), the
optimizer and the rest, and the largest difference in points. Both launches are of their own, minutes apart on the
same machine: on a loaded one they differ by what it does meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UNCHANGED = "benchmarks/workloads/unchanged"
SCRIPTS: Mapping[str, Sequence[str]] = {
    "accelerate_slow_data": ["examples/accelerate_slow_data.py"],
    "ddp_accumulation": ["examples/ddp_accumulation.py"],
    "accelerate_loop": [f"{UNCHANGED}/accelerate_loop.py"],
    "lightning_module": [f"{UNCHANGED}/lightning_module.py"],
    "sparse_recommender": [f"{UNCHANGED}/sparse_recommender.py"],
    "plain_gpt": ["benchmarks/workloads/plain_gpt.py", "--width", "64", "--layers", "2", "--length", "64"],
}
PARTS = ("data", "forward", "backward", "optimizer", "rest")
_SECONDS = 240


def main() -> None:
    """Compare the scripts one by one, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", nargs="*", default=list(SCRIPTS), choices=SCRIPTS)
    worst = {}
    for name in parser.parse_args().scripts:
        ours, theirs = diagnose(SCRIPTS[name]), profile(SCRIPTS[name])
        if not ours or not theirs:
            print(
                f"{name:22} was measured by {'neither' if not (ours or theirs) else 'one'} of both",
                flush=True,
            )
            continue
        worst[name] = max(abs(ours[part] - theirs[part]) for part in PARTS)
        told = ", ".join(f"{part} {ours[part]:.0%} / {theirs[part]:.0%}" for part in PARTS)
        print(
            f"{name:22} step {ours['step_s'] * 1e3:.1f} / {theirs['step_s'] * 1e3:.1f} ms: {told}; "
            f"{100 * worst[name]:.1f} points at most",
            flush=True,
        )
    print(f"{sum(points <= 0.05 for points in worst.values())} of {len(worst)} within 5 points")


def diagnose(script: Sequence[str]) -> dict[str, float]:
    """Return rank 0's step and the shares of its parts as a diagnosis tells them; nothing where it cannot."""
    with tempfile.TemporaryDirectory(prefix="fa-profiled-") as folder:
        trace = Path(folder) / "trace.json"
        launch = ["torchrun", "--nproc-per-node", "2", *script]
        run([sys.executable, "-m", "advisor", "diagnose", "--json", "--trace", str(trace), "--", *launch])
        events = json.loads(trace.read_text())["traceEvents"] if trace.exists() else []
    return add_up([event for event in events if event.get("ph") == "X" and event["pid"] == 1])


def add_up(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the shares of one rank's timeline; what DDP exchanges inside backward is a part of it."""
    steps = [event["dur"] for event in events if event["name"].startswith("step ")]
    if not steps:
        return {}
    names = {"data": "data wait", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}
    spent = {
        part: sum(event["dur"] for event in events if event["name"] == name) / sum(steps)
        for part, name in names.items()
    }
    spent["forward"] += sum(e["dur"] for e in events if e["name"] == "broadcast of buffers") / sum(steps)
    return {"step_s": sum(steps) / len(steps) / 1e6, **spent, "rest": 1.0 - sum(spent.values())}


def profile(script: Sequence[str]) -> dict[str, float]:
    """Return the same as torch's profiler tells it."""
    with tempfile.TemporaryDirectory(prefix="fa-profiled-") as folder:
        output = Path(folder) / "told.json"
        under = str(ROOT / "benchmarks" / "workloads" / "profiled.py")
        run([
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", under, str(output), *script
        ])  # fmt: skip
        if not output.exists():
            return {}
        told: dict[str, float] = json.loads(output.read_text())
    return {**told, "rest": 1.0 - sum(told[part] for part in PARTS[:-1])}


def run(words: Sequence[str]) -> None:
    """Run a command, and show the last of what it said where it failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=_SECONDS, check=False, cwd=ROOT, env=environment
    )
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr)


if __name__ == "__main__":
    main()
