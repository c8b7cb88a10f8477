"""Is an ordinary script decided, and how narrowly? Four of them, none of which knows of an advisor.

    python benchmarks/unchanged_scripts.py [--minutes 3 6] [--repeats 1] [--scripts trainer lightning …]
        [--output docs/results/unchanged_scripts.md]

Two ranks each of a Hugging Face Trainer, a Lightning module, a loop under accelerate and a recommender with a sparse
embedding (`benchmarks/workloads/unchanged/`), each tuned over all its knobs within so many minutes. Width is the
interval's high end over its low one, minus 1. Nobody knows the truth here: the question is whether an answer comes.
Run it alone on the machine; Trainer, Lightning and accelerate come with `make setup`.
"""

import argparse
import math
import os
import platform
import sys
import time
from pathlib import Path

from live_job import tune

_FOLDER = "benchmarks/workloads/unchanged"
SCRIPTS = {
    "trainer": ("torchrun", "--nproc-per-node", "2", f"{_FOLDER}/hugging_face_trainer.py"),
    "lightning": ("python", f"{_FOLDER}/lightning_module.py"),
    "accelerate": ("torchrun", "--nproc-per-node", "2", f"{_FOLDER}/accelerate_loop.py"),
    "sparse": ("torchrun", "--nproc-per-node", "2", f"{_FOLDER}/sparse_recommender.py"),
}


def main() -> None:
    """Run all jobs, print a line for each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, nargs="+", default=[3, 6])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scripts", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = [
        "| script | minutes | answer | gain | interval | width | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for minutes in arguments.minutes:
        for script in arguments.scripts * arguments.repeats:
            answer = tune(f"unchanged-{script}", minutes, SCRIPTS[script])
            print(f"{script}, {minutes:g} minutes: {answer.describe()}", flush=True)
            row = [script, f"{minutes:g}", answer.verdict, "", "", "", f"{answer.seconds:.0f}"]
            if math.isnan(answer.ratio):
                row[3] = answer.headline
            else:
                row[3:6] = (
                    f"{answer.ratio - 1:+.1%}",
                    f"{answer.low - 1:+.1%} … {answer.high - 1:+.1%}",
                    f"{answer.high / answer.low - 1:.1%}",
                )
            rows.append(f"| {' | '.join(row)} |")
    print("\n".join(rows))
    if arguments.output:
        title = "" if arguments.output.exists() else "# Ordinary scripts, unchanged\n\n"
        with arguments.output.open("a") as file:
            file.write(
                f"{title}`python benchmarks/unchanged_scripts.py {' '.join(sys.argv[1:])}`\n\n"
                f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
                f"{time.strftime('%Y-%m-%d')}\n\n" + "\n".join(rows) + "\n\n"
            )


if __name__ == "__main__":
    main()
