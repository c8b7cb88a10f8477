"""Does what was advised arrive? Ordinary scripts are tuned, and their strategies verified afterwards, in new jobs.

    python benchmarks/verify_again.py [--minutes 3] [--again 1] [--scripts trainer lightning accelerate]
        [--output docs/results/verify_again.md]

Each script is started with two threads a rank on however few cores there are, so that there is something to find. A row
says what the job advised, what `advisor verify` measured with the strategy file that it wrote, and whether today's
likeliest gain lies in the advised interval (of 95 %, so one in twenty may not, and today has an error of its own).
Run it alone on the machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from live_job import ROOT
from unchanged_scripts import SCRIPTS

THREADS = "2"


def advise(words: list[str], folder: Path) -> dict[str, object]:
    """Run one command of `advisor` with --json in a data folder of its own, and return what it printed."""
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "ADVISOR_DATA_DIR": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": THREADS,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [str(bin_folder / "advisor"), *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"headline": (done.stderr.strip().splitlines() or ["no answer"])[-1]}


def spell(gain: object) -> str:
    """Return an interval as `2.40x (2.20 … 2.61)`."""
    if not isinstance(gain, dict):
        return "none"
    return f"{gain['ratio']:.3f}x ({gain['low']:.3f} … {gain['high']:.3f})"


def main() -> None:
    """Tune and verify each script, print a line for each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--again", type=int, default=1, help="verifications of each strategy")
    parser.add_argument(
        "--scripts", nargs="+", choices=SCRIPTS, default=["trainer", "lightning", "accelerate"]
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = ["| script | advised | with | verified | inside |", "|---|---|---|---|---|"]
    for script in arguments.scripts:
        with tempfile.TemporaryDirectory() as name:
            folder, minutes = Path(name), ["--minutes", str(arguments.minutes)]
            files = folder / "advice"
            command = ["--", *SCRIPTS[script]]
            tuned = advise(["tune", "--json", *minutes, "--output", str(files), *command], folder)
            advised = tuned.get("gain")
            if tuned.get("verdict") != "change" or not isinstance(advised, dict):
                rows.append(f"| {script} | {tuned.get('headline')} | | | |")
                print(rows[-1], flush=True)
                continue
            for _ in range(arguments.again):
                found = advise(["verify", str(files / "strategy.json"), "--json", *minutes, *command], folder)
                gain = found.get("gain")
                inside = isinstance(gain, dict) and advised["low"] <= gain["ratio"] <= advised["high"]
                changes = ", ".join(f"{knob} {value}" for knob, value in dict(tuned["changes"]).items())
                rows.append(
                    f"| {script} | {spell(advised)} | {changes} | {spell(gain)} | {'yes' if inside else 'no'} |"
                )
                print(rows[-1], flush=True)
    if arguments.output:
        words = f"`python benchmarks/verify_again.py {' '.join(sys.argv[1:])}` on {platform.processor() or 'x86_64'}, "
        head = f"# What was advised, verified\n\n{words}{os.cpu_count()} cores.\n\n"
        arguments.output.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
