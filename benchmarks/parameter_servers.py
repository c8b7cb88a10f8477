"""Does the cost model tell how long a step with parameter servers takes, over links that it was not fitted on?

As root: python benchmarks/parameter_servers.py --rates 100mbit,300mbit
Two trainers and two further nodes of a testbed run the bundled workload under several setups. The model is fitted to
those of the first rate; those of the other rates are predicted, and then measured. Setups take turns, `--rounds` times.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from advisor.local.testbed import TestbedNode, build_testbed
from advisor.protocol.nodes.testbed import Testbed
from advisor.protocol.training.parameter_servers import ParameterServers
from advisor.tuning.model.parameter_servers import ServerModel, find_traffic, fit

ROOT = Path(__file__).parents[1]
SETUPS = {
    "1 server": "--servers 1",
    "2 servers, whole variables": "--servers 2 --min-block 0",
    "2 servers, sliced": "--servers 2",
    "2 servers, with the trainers": "--servers 2 --place together",
    "2 servers, 16 bits": "--servers 2 --wire 16",
    "2 servers, geo every 4 steps": "--servers 2 --mode geo --geo-k 4",
    "1 server, async": "--servers 1 --mode async",
    "rows on 1 server, allreduce for the rest": "--architecture hybrid --servers 1",
    "no servers": "--architecture collective",
    "allreduce, table dense": "--architecture collective --table dense",
}
PORT = 29_600
WARMUP = 4
"""Lines at a launch's beginning that do not count."""


@dataclass(frozen=True)
class Launch:
    """What one launch of a setup told."""

    job: ParameterServers
    largest_share: float
    step_s: float
    """Median step."""


@dataclass(frozen=True)
class Measured:
    """A setup over links of one rate."""

    name: str
    launches: list[Launch] = field(default_factory=list)

    @property
    def job(self) -> ParameterServers:
        """What the program told of itself, as a job's forecast takes it."""
        return self.launches[0].job

    @property
    def step_s(self) -> float:
        """The mean over launches."""
        return fmean(launch.step_s for launch in self.launches)


def launch(nodes: Sequence[TestbedNode], words: str, steps: int, limit_s: float) -> Launch:
    """Run the workload under a setup on all nodes."""
    command = (
        sys.executable, "-m", "parameter_server", "--nodes", str(len(nodes)), "--trainer-nodes", "2",
        "--trainers", "2", "--steps", str(steps), "--master-addr", nodes[0].address, "--master-port", str(PORT),
        *words.split(),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    (*node.prefix, *command, "--node-rank", str(rank)), cwd=ROOT / "examples" / "servers", text=True,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, stderr=subprocess.PIPE,
                )
            )
            for rank, node in enumerate(nodes)
        ]  # fmt: skip
        try:
            out, said = running[0].communicate(timeout=limit_s)
        finally:
            for process in running:
                process.kill()
    if running[0].returncode != 0:
        raise SystemExit(f"{words}: ended with {running[0].returncode}:\n{said[-3000:]}")
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    told = next(line["facts"]["parameter_servers"] for line in lines if "facts" in line)
    counted = [line for line in lines if "step_time_s" in line][WARMUP:]
    step_s = median(line["step_time_s"] for line in counted)
    return Launch(ParameterServers.model_validate(told), counted[-1]["largest_share"], step_s)


def measure(rate: str, names: Sequence[str], rounds: int, steps: int, limit_s: float) -> Iterator[Measured]:
    """Measure every setup over links of that rate, in turns that alternate their order."""
    found: dict[str, Measured] = {}
    with build_testbed(Testbed(nodes=4, rate=rate)) as nodes:
        for turn in range(rounds):
            for name in names if turn % 2 == 0 else reversed(names):
                begin = time.monotonic()
                made = launch(nodes, SETUPS[name], steps, limit_s)
                found.setdefault(name, Measured(name)).launches.append(made)
                took = f"{made.step_s * 1e3:7.1f} ms   ({time.monotonic() - begin:.0f} s)"
                print(f"{rate:>8}  {name:42} {took}", file=sys.stderr, flush=True)
    yield from found.values()


def show(title: str, model: ServerModel, measured: Sequence[Measured]) -> None:
    """Print a table of predicted against measured steps."""
    head = ("setup", "largest share", "measured, ms", "predicted, ms", "off")
    print(f"\n{title}\n\n| {' | '.join(head)} |\n{'|---' * len(head)}|")
    misses = []
    for each in measured:
        predicted_s = model.predict_step_s(each.job)
        misses.append(predicted_s / each.step_s - 1.0)
        share = find_traffic(each.job).largest_share
        theirs = each.launches[0].largest_share
        if share is not None and round(share, 4) != theirs:
            raise SystemExit(f"{each.name}: the program tells a largest share of {theirs}, not {share}.")
        told = "–" if share is None else f"{share:.3f}"
        launches = ", ".join(f"{launch.step_s * 1e3:.0f}" for launch in each.launches)
        row = (each.name, told, f"{each.step_s * 1e3:.0f} ({launches})")
        print(f"| {' | '.join(row)} | {predicted_s * 1e3:.0f} | {misses[-1] * 100:+.1f} % |")
    sizes = [abs(miss) * 100 for miss in misses]
    print(f"\nMean size of the misses {fmean(sizes):.1f} %, the largest {max(sizes):.1f} %.")


def main() -> None:
    """Measure, fit to the first rate, and print what that says of every rate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rates", default="100mbit,300mbit", help="The first is fitted, the others are held out."
    )
    parser.add_argument("--setups", default="", help="Numbers from 0, with commas; all without it.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24, help="Of each launch.")
    parser.add_argument("--limit", type=float, default=240.0, help="Seconds that a launch may take.")
    asked = parser.parse_args()
    names = (
        [list(SETUPS)[int(number)] for number in asked.setups.split(",")] if asked.setups else list(SETUPS)
    )
    rates = asked.rates.split(",")
    measured = {rate: list(measure(rate, names, asked.rounds, asked.steps, asked.limit)) for rate in rates}
    bytes_per_s = {rate: Testbed(nodes=4, rate=rate).bits_per_s / 8 for rate in rates}
    fitted = [(each.job, each.step_s) for each in measured[rates[0]]]
    for kind, points in (
        (f"all setups over {rates[0]}", fitted),
        (f"the first setup over {rates[0]} alone", fitted[:1]),
    ):
        model = fit(points, bytes_per_s[rates[0]])
        print(
            f"\n## Fitted to {kind}: overhead {model.overhead_s * 1e3:.1f} ms, slowness {model.slowness:.3f}"
        )
        for rate in rates:
            held = "" if rate == rates[0] and len(points) > 1 else ", predicted"
            show(
                f"**{rate}{held}**",
                ServerModel(bytes_per_s[rate], model.overhead_s, model.slowness),
                measured[rate],
            )


if __name__ == "__main__":
    main()
