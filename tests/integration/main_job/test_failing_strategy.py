"""A script that fails under one setting only: the strategy is blamed in the script's words, and the job goes on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.cli.connection import look_at
from advisor.protocol.measured.trials import Outcome, Purpose

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("train_up_to_three_buckets.py")
KNOB = "fuse_grad_size_in_MB"


@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_a_strategy_under_which_the_script_fails_is_blamed_and_the_job_has_an_answer(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    environment |= {"ADVISOR_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [
            sys.executable, "-m", "advisor", "tune", "--minutes", "2", "--trials", "3", "--block-seconds", "0.4",
            "--output", "advice", "--json", "--knob", KNOB, "--knob", "sync_nccl_allreduce",
            "--values", f"{KNOB}=0.0625,25", "--", "torchrun", "--nproc-per-node", "2", "train.py",
        ],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=570, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    advice = json.loads(done.stdout)
    with look_at(environment) as client:
        trials = [t for t in client.history(advice["job_id"]).trials if t.purpose is Purpose.SEARCH]
    blamed = [t for t in trials if t.outcome is Outcome.CRASHED]
    assert blamed, [(t.changes, t.outcome, t.outcome_reason) for t in trials]
    for trial in blamed:
        assert KNOB in trial.changes
        assert "ValueError: this training cannot do with" in trial.outcome_reason
        assert "train.py:" in trial.outcome_reason
    assert [t for t in trials if t.outcome is Outcome.FINISHED]
    assert KNOB not in advice["changes"]
    assert advice["action"] != "mend_script"
    assert "script itself" not in advice["headline"]
