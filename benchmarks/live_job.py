"""One live `advisor tune` job of a benchmark, in a data folder of its own: earlier jobs teach it nothing."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Answer:
    """How one job ended."""

    verdict: str
    """change, keep, undecided, or failed."""
    seconds: float
    """From the command to its end."""
    ratio: float
    """Throughput of the strategy over the baseline's; NaN where nothing was held against it."""
    low: float
    high: float
    headline: str = ""
    """What its user read first."""

    @property
    def is_decided(self) -> bool:
        """Whether it ended with an answer."""
        return self.verdict in {"change", "keep"}

    def describe(self) -> str:
        """Return the answer in a line."""
        if math.isnan(self.ratio):
            return f"{self.verdict} after {self.seconds:.0f} s: {self.headline}"
        return (
            f"{self.verdict}, {self.ratio - 1:+.2%} ({self.low - 1:+.2%} … {self.high - 1:+.2%}) "
            f"after {self.seconds:.0f} s"
        )


def tune(name: str, minutes: float, command: Sequence[str], options: Sequence[str] = ()) -> Answer:
    """Run one job to its end."""
    bin_folder = Path(sys.executable).parent
    words = [
        str(bin_folder / "advisor"),
        "tune",
        "--json",
        "--name",
        name,
        "--minutes",
        str(minutes),
        *options,
    ]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "ADVISOR_DATA_DIR": folder,
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
        }
        start = time.monotonic()
        done = subprocess.run(
            [*words, "--", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - start
    try:
        advice = json.loads(done.stdout)
    except ValueError:
        told = (done.stderr.strip().splitlines() or [""])[-1]
        return Answer("failed", seconds, math.nan, math.nan, math.nan, told)
    found = advice.get("gain") or {}
    if not found:
        print(done.stderr[-4000:], file=sys.stderr)  # what its launches said: nobody else will know
    ratio, low, high = (float(found.get(name, math.nan)) for name in ("ratio", "low", "high"))
    return Answer(str(advice["verdict"]), seconds, ratio, low, high, str(advice["headline"]))
