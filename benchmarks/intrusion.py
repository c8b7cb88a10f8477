"""What the runtime costs a script: step time with it against step time without it, in the same processes.

    python benchmarks/intrusion.py [--production] [--model small] [--layers 4] [--stretches 80] [--loop-us 70]
        [--inside]

Each model is trained under torchrun with the runtime in front, in the middle of a timed race; with `--production`
under `advisor run`, long after its strategy (the script's own setting, so that nothing else differs) was proved. The
runtime is switched off and on between stretches of steps, the order changing from pair to pair (off on, on off, …),
so that a drifting machine harms both alike. Reported are the ratio of step times with a 95 % interval over the pairs,
and the CPU time of the training thread that the runtime adds to a step, which does not depend on what else the
machine does. Fewer `--layers` make shorter steps. With `--loop-us` a loop of so many microseconds stands in for the
runtime: it shows what any CPU time in a step costs on this machine. With `--inside` the runtime is on all the time, and
each of its calls in a step is timed where it stands: runs of that agree to a few microseconds, but what the calls cost
what comes after them is not in it.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sessions import ROOT, Ranks, SessionFailed, run_session

MODELS = {
    "small": {"width": 256, "layers": 6, "batch": 64},
    "middle": {"width": 512, "layers": 8, "batch": 128},
}
CALLS = (
    "begin_forward", "end_forward", "begin_backward", "end_backward", "begin_optimizer_step", "end_optimizer_step",
)  # fmt: skip
"""What patches and hooks call in every step of a script like this one."""
WARM_UP_STEPS = 60
"""Before the first stretch: the runtime's hello, its instruction and its own warm-up lie in them."""


def train(sizes: dict[str, int], arguments: argparse.Namespace) -> None:
    """One rank: trains, switches the runtime off and on, and prints the step times."""
    current = sys.modules["fleet_advisor_runtime.current"]

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    runtime = current.current_runtime
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    width = sizes["width"]
    layers = [layer for _ in range(sizes["layers"]) for layer in (nn.Linear(width, width), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(sizes["batch"], width, device=device)

    def step() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.thread_time()
        while time.perf_counter() < wall + loop_s:
            pass
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if use_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - wall, time.thread_time() - cpu

    loop_s = 0.0
    for _ in range(WARM_UP_STEPS):
        step()
    series: list[dict[str, Any]] = []
    inside = time_calls(runtime) if arguments.inside else {}
    for stretch in range(arguments.stretches):
        is_on = arguments.inside or stretch % 4 in (1, 2)
        current.set_current(runtime if is_on and not arguments.loop_us else None)
        loop_s = arguments.loop_us * 1e-6 if is_on else 0.0
        step()
        times = [step() for _ in range(arguments.steps)]
        series.append({"on": is_on, "wall_s": [t[0] for t in times], "cpu_s": [t[1] for t in times]})
    current.set_current(None)
    if dist.get_rank() == 0:
        steering = runtime.runtime._steering
        if arguments.production:
            is_measured = steering is not None and steering._course_ended
        else:
            least = 0 if arguments.loop_us else arguments.steps
            is_measured = steering._race is not None and steering._race.steps_done >= least
        if not is_measured:
            raise SystemExit("the runtime was not at work: nothing was measured")
        Path(arguments.answer).write_text(json.dumps({"stretches": series, "inside_s": inside}))
    dist.barrier()
    os._exit(0)


def time_calls(runtime: Any) -> dict[str, list[float]]:
    """From here on every call of the runtime is timed: seconds by its name, filled as the script goes on."""
    seconds: dict[str, list[float]] = {name: [] for name in CALLS}

    def time_call(name: str) -> None:
        call, found = getattr(runtime, name), seconds[name]

        def timed(*words: Any) -> Any:
            start_s = time.perf_counter()
            returned = call(*words)
            found.append(time.perf_counter() - start_s)
            return returned

        setattr(runtime, name, timed)

    for name in CALLS:
        time_call(name)
    return seconds


def measure(sizes: dict[str, int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Launch the ranks once, in one block that lasts for ever; return rank 0's stretches, and its calls' times."""
    block = {"overrides": {}, "warmup_steps": 5, "min_steps": 10**7, "max_steps": 10**7, "profile_steps": 0}
    with tempfile.TemporaryDirectory(prefix="fa-intrusion-") as directory:
        answer = Path(directory) / "series.json"
        words = [
            __file__, "--rank-of", json.dumps(sizes), "--answer", str(answer),
            "--stretches", str(arguments.stretches), "--steps", str(arguments.steps),
            "--loop-us", str(arguments.loop_us), *(["--inside"] if arguments.inside else []),
        ]  # fmt: skip
        if arguments.production:
            launcher = ["torchrun", "--standalone", "--nproc-per-node", str(arguments.nproc_per_node)]
            run = [sys.executable, "-m", "agent.production", "--set", "num_threads=1", "--", *launcher]
            scripts = str(Path(sys.executable).parent)
            path = os.pathsep.join([scripts, os.environ["PATH"]])
            subprocess.run(
                [*run, *words, "--production"], cwd=ROOT, env={**os.environ, "PATH": path}, check=True
            )
            return dict(json.loads(answer.read_text()))
        try:
            run_session(words, [block], Ranks(nproc_per_node=arguments.nproc_per_node))
        except SessionFailed as failed:
            # The block never ends, so a session that went well has measured none.
            if not answer.exists():
                raise SystemExit(str(failed)) from failed
        measured: dict[str, Any] = json.loads(answer.read_text())
    return measured


def report(name: str, series: list[dict[str, Any]]) -> None:
    """Print the ratio over neighbouring stretches with its interval."""
    log_ratios, added_cpu_s = [], []
    for first, second in zip(series[::2], series[1::2], strict=False):
        on, off = (first, second) if first["on"] else (second, first)
        log_ratios.append(math.log(statistics.median(on["wall_s"]) / statistics.median(off["wall_s"])))
        added_cpu_s.append(statistics.median(on["cpu_s"]) - statistics.median(off["cpu_s"]))
    off_s = statistics.median(t for stretch in series if not stretch["on"] for t in stretch["wall_s"])
    mean = statistics.mean(log_ratios)
    half = 2.0 * statistics.stdev(log_ratios) / math.sqrt(len(log_ratios))
    print(
        f"{name}: {off_s * 1e3:.2f} ms a step without; ratio {math.exp(mean):.4f} "
        f"(95 % {math.exp(mean - half):.4f} … {math.exp(mean + half):.4f}, {len(log_ratios)} pairs of stretches); "
        f"CPU time added to a step {statistics.median(added_cpu_s) * 1e6:.0f} µs "
        f"({statistics.median(added_cpu_s) / off_s:.2%} of it)",
        flush=True,
    )


def report_inside(name: str, measured: dict[str, Any]) -> None:
    """Print the mean of each call without its slowest hundredth, and their sum.

    No median: it would not see a cost that only every fifth step has, as the boundary at the end of a turn is.
    """

    def average_us(times: list[float]) -> float:
        return statistics.fmean(sorted(times)[: -(len(times) // 100) or None]) * 1e6

    step_s = statistics.median(time_s for stretch in measured["stretches"] for time_s in stretch["wall_s"])
    calls_us = {call: average_us(times) for call, times in measured["inside_s"].items()}
    print(
        f"{name}: {step_s * 1e3:.2f} ms a step; {sum(calls_us.values()):.1f} µs of it in the runtime's calls "
        f"({len(measured['inside_s'][CALLS[0]])} steps): "
        + ", ".join(f"{call} {time_us:.1f}" for call, time_us in calls_us.items()),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--stretches", type=int, default=80, help="stretches of steps, half of them without the runtime"
    )
    parser.add_argument("--steps", type=int, default=25, help="timed steps of a stretch")
    parser.add_argument("--nproc-per-node", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, help="only this one (default: all)")
    parser.add_argument("--layers", type=int, help="layers of the model (default: as many as it has)")
    parser.add_argument("--production", action="store_true", help="under advisor run instead of in a race")
    parser.add_argument("--loop-us", type=int, default=0, help="a loop that long in place of the runtime")
    parser.add_argument("--inside", action="store_true", help="time the runtime's own calls, one by one")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        train(json.loads(arguments.rank_of), arguments)
        return
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {arguments.nproc_per_node} ranks"
    )
    for name, sizes in MODELS.items():
        if arguments.model in (None, name):
            measured = measure({**sizes, "layers": arguments.layers or sizes["layers"]}, arguments)
            if arguments.inside:
                report_inside(name, measured)
            else:
                report(name, measured["stretches"])


if __name__ == "__main__":
    main()
