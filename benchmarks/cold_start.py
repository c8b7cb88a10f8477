"""What does the command line cost before it does anything, against an earlier release?

python benchmarks/cold_start.py --before COMMIT [--turns 10]      # CPU seconds of each command, in turns

The earlier release is a worktree of that commit, run by the same Python and libraries. One server, of today's release,
with twenty queued jobs, answers both.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from advisor.client import Client  # noqa: E402
from advisor.local.server import local_server  # noqa: E402
from advisor.protocol.asked.jobs import JobSpec  # noqa: E402

JOBS = 20


@contextmanager
def check_out(commit: str) -> Iterator[Path]:
    """Offer a worktree of that commit."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def measure(release: Path, words: list[str], **environment: str) -> float:
    """Seconds of CPU, of the user's and the system's, that a command takes."""
    command = [sys.executable, "-m", "advisor", *words]
    environment = {**os.environ, **environment, "PYTHONPATH": str(release)}
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=release, env=environment, check=True, stdout=subprocess.DEVNULL)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime - begin.ru_utime + end.ru_stime - begin.ru_stime


def compare(title: str, before: Path, turns: int, words: list[str], **environment: str) -> None:
    """Run a command of both releases in turns, once before it counts, and print a line."""
    for release in (before, ROOT):
        measure(release, words, **environment)
    pairs = [
        tuple(measure(release, words, **environment) for release in (before, ROOT)) for _ in range(turns)
    ]
    old, new = map(statistics.median, zip(*pairs, strict=True))
    ratios = sorted(after / earlier for earlier, after in pairs)
    print(
        f"{title:<8} {old:.3f} s -> {new:.3f} s: {new / old:.2f} of it (turns: {ratios[0]:.2f} … {ratios[-1]:.2f})"
    )


def main() -> None:
    """Compare the commands that are asked for most."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--turns", type=int, default=10)
    given = parser.parse_args()
    for name in ("ADVISOR_URL", "ADVISOR_TOKEN", "ADVISOR_TOKEN_FILE"):
        os.environ.pop(name, None)
    with check_out(given.before) as before, tempfile.TemporaryDirectory() as data_dir:
        os.environ["ADVISOR_DATA_DIR"] = data_dir
        compare("--help", before, given.turns, ["--help"])
        with local_server(Path(data_dir), os.environ, lambda _: None, alone=True) as server:
            with Client(server.url, server.token) as client:
                for number in range(JOBS):
                    workload = {"command": ["torchrun", "train.py"], "working_dir": data_dir}
                    spec = JobSpec.model_validate({"name": f"train-{number}", "workload": workload})
                    client.submit_job(spec, idempotency_key=str(number))
            named = {"ADVISOR_URL": server.url, "ADVISOR_TOKEN": server.token}
            compare("jobs", before, given.turns, ["jobs"], **named)


if __name__ == "__main__":
    main()
