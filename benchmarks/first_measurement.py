"""How long `advisor tune` takes from the command to its first measurement, beside another checkout of this repository.

    git worktree add /tmp/before 978a013
    python benchmarks/first_measurement.py --against /tmp/before

Each run has a data directory of its own, as the first command on a machine; the checkouts take turns, so that what the
machine does besides meets both. Reported are the medians of each phase, and of the ratios of neighbours. Not covered: a
cold page cache, and servers that run already.
"""

import argparse
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORKLOAD = (
    "torchrun", "--nproc-per-node", "2", "agent/workloads/decoder.py",
    "--width", "96", "--layers", "2", "--vocabulary", "2048", "--batch", "4",
)  # fmt: skip
PHASES = {
    "job submitted": "SELECT min(created_at) FROM jobs",
    "ranks started": "SELECT min(started_at) FROM sessions",
    "ranks trained three steps": "SELECT min(at) FROM events WHERE sentence LIKE 'The script runs on%'",
    "first measurement issued": "SELECT min(issued_at) FROM blocks",
}
"""What happens on the way, and where the server's database says when."""
LAST = "first measurement issued"
PATIENCE_S = 180.0
POLL_S = 0.1


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--against", type=Path, help="another checkout, whose way is measured beside this one's"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument(
        "command", nargs="*", default=WORKLOAD, help="launch command (default: the small decoder)"
    )
    arguments = parser.parse_args()
    checkouts = (
        {"before": arguments.against.resolve(), "after": ROOT} if arguments.against else {"after": ROOT}
    )
    runs: dict[str, list[Mapping[str, float]]] = {name: [] for name in checkouts}
    for number in range(arguments.runs):
        for name, checkout in checkouts.items():
            runs[name].append(time_phases(checkout, arguments.command))
            print(f"run {number + 1}, {name}: {runs[name][-1][LAST]:.1f} s", file=sys.stderr)
    print("| seconds from the command | " + " | ".join(checkouts) + " |")
    print("|---|" + "--:|" * len(checkouts))
    for phase in PHASES:
        shown = [statistics.median(run[phase] for run in runs[name]) for name in checkouts]
        print(f"| {phase} | " + " | ".join(f"{seconds:.1f}" for seconds in shown) + " |")
    if arguments.against:
        pairs = zip(runs["after"], runs["before"], strict=True)
        ratios = [after[LAST] / before[LAST] for after, before in pairs]
        print(
            f"\nAfter ÷ before, of {len(ratios)} pairs: median {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} … {max(ratios):.2f})"
        )


def time_phases(checkout: Path, command: Sequence[str]) -> Mapping[str, float]:
    """Run `advisor tune` of a checkout until its first measurement is issued; return each phase's end in seconds."""
    with tempfile.TemporaryDirectory(prefix="first-measurement-", ignore_cleanup_errors=True) as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        environment = kept | {"ADVISOR_DATA_DIR": folder, "PYTHONPATH": str(checkout)}
        words = [sys.executable, "-P", "-m", "advisor", "tune", "--output", f"{folder}/out", "--", *command]
        begun = datetime.now(UTC)
        tuning = subprocess.Popen(
            words, env=environment, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            return _await_phases(tuning, Path(folder) / "advisor.db", begun)
        finally:
            os.killpg(tuning.pid, signal.SIGINT)
            tuning.wait()


def _await_phases(tuning: subprocess.Popen[bytes], path: Path, begun: datetime) -> Mapping[str, float]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and tuning.poll() is None:
        time.sleep(POLL_S)
        moments = _read_moments(path)
        if moments.get(LAST) is not None:
            return {phase: (moment - begun).total_seconds() for phase, moment in moments.items()}
    raise SystemExit(f"Nothing was measured within {PATIENCE_S:.0f} s, or the command ended before.")


def _read_moments(path: Path) -> dict[str, datetime]:
    moments = {}
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            for phase, query in PHASES.items():
                text = database.execute(query).fetchone()[0]
                if text is not None:
                    moments[phase] = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except sqlite3.OperationalError:
        return {}  # not made yet
    return moments


if __name__ == "__main__":
    main()
