"""A whole job of a command workload, as a user runs it: a NumPy training that does not know the advisor exists."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRAINING = ROOT / "examples" / "numpy_training.py"


@pytest.mark.distributed
@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_numpy_training_is_tuned_by_its_command_line(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    environment |= {"ADVISOR_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    launch = [
        sys.executable, str(TRAINING), "--steps", "100000", "--bucket-mb", "${fuse_grad_size_in_MB:-0.0625}",
        "--half", "${fp16_allreduce}", "--batch", "4",
    ]  # fmt: skip
    done = subprocess.run(
        [
            sys.executable, "-m", "advisor", "tune", "--kind", "command", "--minutes", "0.5", "--trials", "3",
            "--block-seconds", "0.3", "--try", "--batch=4,128:exact", "--output", "advice", "--json", "--", *launch,
        ],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    advice = json.loads(done.stdout)
    assert advice["baseline"]["fuse_grad_size_in_MB"] == 0.0625
    # A step of four samples costs nearly what one of 128 does.
    assert advice["verdict"] == "change", advice["headline"]
    assert advice["changes"]["batch"] == 128
    assert advice["provenance"]["fuse_grad_size_in_MB"] == "measured"
    assert advice["diagnosis"]["bound"] == "unmeasured"
    # Each block had a launch: the probe's two at least, and one for each strategy.
    assert advice["cost"]["sessions"] >= 2 + advice["cost"]["trials"]
    assert {path.name for path in (tmp_path / "advice").iterdir()} == {
        "strategy.json",
        "run.sh",
        "report.html",
    }
    trained = subprocess.run(
        [str(tmp_path / "advice" / "run.sh"), "--steps", "5"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert len(trained.stdout.splitlines()) == 5
