"""Does a job decide, and rightly? Live jobs with a known gain, and A/A jobs whose launches differ.

    python benchmarks/decide.py [--gains 0 0.01 0.02 0.03 0.05 0.2 2] [--jobs 20] [--minutes 3] [--load] [--luck 0.01]
        [--output docs/results/decide.md]

Every job is `advisor tune` on `benchmarks/workloads/injected_gain.py`, a real two-rank training whose gain under one
knob is injected; the search has that knob only, so that the question is the verdict's alone. A job is *decided* when
it ends with change or keep, *right* when that is the truth: keep for gains below the 1 % worth a change, change for
larger ones; a gain of exactly 1 % may be either. The interval *covers* when it holds 1 + gain. `--load` keeps a
neighbour busy in bursts of seconds beside the jobs; `--luck` gives each launch an effect of its own. The same command
with an `--output` that exists adds its rows to it. Seconds, ratio and width (high over low, minus 1) are medians. Run
it alone on the machine; Ctrl-C ends it with the jobs that are done.
"""

import argparse
import math
import multiprocessing
import os
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from live_job import Answer, tune

_WORKLOAD = "benchmarks/workloads/injected_gain.py"
_WORTHWHILE = 0.01


@dataclass(frozen=True)
class Outcome:
    """How one job ended, and what the truth was."""

    gain: float
    answer: Answer

    @property
    def is_right(self) -> bool:
        """Whether the answer is the truth."""
        if math.isclose(self.gain, _WORTHWHILE):
            return self.answer.is_decided
        return self.answer.verdict == ("change" if self.gain > _WORTHWHILE else "keep")

    @property
    def covers(self) -> bool:
        """Whether the interval holds the truth."""
        return self.answer.low <= 1.0 + self.gain <= self.answer.high


def run_job(gain: float, minutes: float, luck: float, number: int) -> Outcome:
    """Run one job to its end."""
    script = ("torchrun", "--nproc-per-node", "2", _WORKLOAD, "--gain", str(gain), "--luck", str(luck))
    options = ("--knob", "num_iteration_per_drop_scope")
    return Outcome(gain, tune(f"decide-{gain}-{number}", minutes, script, options))


@contextmanager
def busy_neighbour(wanted: bool) -> Iterator[None]:
    """Another program that computes in bursts of seconds while the jobs run."""
    process = multiprocessing.Process(target=_compute_in_bursts, daemon=True) if wanted else None
    if process is not None:
        process.start()
    try:
        yield
    finally:
        if process is not None:
            process.kill()


def _compute_in_bursts() -> None:
    dice = random.Random(7)
    while True:
        end = time.monotonic() + dice.expovariate(0.5)
        while time.monotonic() < end:
            pass
        time.sleep(dice.expovariate(0.5))


def summarise(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one row of a table for each gain."""
    rows = [
        "| injected | jobs | decided | right | change | keep | undecided | seconds | ratio | width | covers |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for gain in sorted({o.gain for o in outcomes}):
        group = [o for o in outcomes if o.gain == gain]
        answers = [o.answer for o in group]
        known = [o for o in group if not math.isnan(o.answer.ratio)]
        counts = [sum(a.verdict == v for a in answers) for v in ("change", "keep", "undecided")]
        width = median(o.answer.high / o.answer.low - 1 for o in known) if known else math.nan
        ratio = median(o.answer.ratio for o in known) if known else math.nan
        rows.append(
            f"| {gain:+.0%} | {len(group)} | {sum(a.is_decided for a in answers)} | {sum(o.is_right for o in group)} | "
            f"{' | '.join(map(str, counts))} | {median(a.seconds for a in answers):.0f} | {ratio - 1:+.2%} | "
            f"{width:.2%} | {sum(o.covers for o in known)}/{len(known)} |"
        )
    return rows


def main() -> None:
    """Run the jobs, print a line for each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gains", type=float, nargs="+", default=[0, 0.01, 0.02, 0.03, 0.05, 0.2, 2])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--luck", type=float, default=0.0)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    with suppress(KeyboardInterrupt), busy_neighbour(arguments.load):
        for number in range(arguments.jobs):
            for gain in arguments.gains:
                outcome = run_job(gain, arguments.minutes, arguments.luck, number)
                outcomes.append(outcome)
                print(f"{gain:+.0%} job {number}: {outcome.answer.describe()}", flush=True)
    table = summarise(outcomes)
    print("\n".join(table))
    if arguments.output:
        title = "" if arguments.output.exists() else "# Does a job decide, and rightly?\n\n"
        command = "python benchmarks/decide.py " + " ".join(sys.argv[1:])
        with arguments.output.open("a") as file:
            file.write(
                f"{title}`{command}`\n\n{platform.platform()}, {os.cpu_count()} cores, Python "
                f"{platform.python_version()}, {time.strftime('%Y-%m-%d')}\n\n" + "\n".join(table) + "\n\n"
            )


if __name__ == "__main__":
    main()
