"""Are races of two commands told right? Commands with a known ratio.

python benchmarks/two_commands.py --each 3            # a table of cases: right, undecided, wrong
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

SCRIPT = Path(__file__).with_name("workloads") / "known_options.py"
LAUNCH = f"torchrun --nproc-per-node 2 {SCRIPT.name}"
RATIOS = (1.0, 1.05, 1.3, 3.0)
"""How many times as long as command B's the pauses of A are; the computing beside them is the same for both."""


@dataclass(frozen=True)
class Answer:
    """What one job said, and whether it is true."""

    case: str
    verdict: str
    is_right: bool
    is_wrong: bool
    told: str
    seconds: float


def call(words: list[str]) -> tuple[dict[str, object], float]:
    """Run `advisor` in a folder of its own; return its answer, and its wall time in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SCRIPT.name).write_text(SCRIPT.read_text())
        environment = {**os.environ, "ADVISOR_DATA_DIR": f"{folder}/data", "NO_COLOR": "1"}
        begin = os.times().elapsed
        done = subprocess.run(
            [sys.executable, "-m", "advisor", *words], cwd=folder, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(f"advisor {' '.join(words)} failed:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout), os.times().elapsed - begin


def race(ratio: float, minutes: float) -> Answer:
    """Two commands, of which the second one's engine pauses `ratio` times shorter."""
    commands = [f"{LAUNCH} --factor {factor:.6g}" for factor in (ratio, 1.0)]
    found, seconds = call(
        ["race", *commands, "--effect", "exact", "--minutes", str(minutes), "--min-gain", "2", "--json"]
    )
    gain, verdict = found["gain"], str(found["verdict"])
    told = f"{gain['likely']:.3f} ({gain['low']:.3f} … {gain['high']:.3f})" if isinstance(gain, dict) else "—"
    faster = ratio > 1.02
    return Answer(
        f"race, A pauses {ratio:g}x as long", verdict,
        is_right=verdict == ("change" if faster else "keep"),
        is_wrong=verdict == ("keep" if faster else "change"),
        told=told, seconds=seconds,
    )  # fmt: skip


def main() -> None:
    """Print a line for each job, and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=3, help="Jobs of each case.")
    parser.add_argument("--minutes", type=float, default=2.0, help="Budget of each job.")
    asked = parser.parse_args()
    answers: list[Answer] = []
    for _ in range(asked.each):
        jobs = [partial(race, ratio, asked.minutes) for ratio in RATIOS]
        for job in jobs:
            answers.append(job())
            last = answers[-1]
            mark = "right" if last.is_right else "WRONG" if last.is_wrong else "open"
            print(f"{last.case:45} {last.verdict:10} {mark:6} {last.told}   {last.seconds:.0f} s", flush=True)
    print("\n| case | jobs | right | open | wrong |\n|---|---|---|---|---|")
    for case in dict.fromkeys(answer.case for answer in answers):
        of = [answer for answer in answers if answer.case == case]
        right, wrong = sum(a.is_right for a in of), sum(a.is_wrong for a in of)
        print(f"| {case} | {len(of)} | {right} | {len(of) - right - wrong} | {wrong} |")


if __name__ == "__main__":
    main()
