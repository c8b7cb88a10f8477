"""Options of the user's own script: tuned together within a requirement, exported, and in force in a real training."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.protocol.answers.strategy_file import read_strategy_file

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("train_by_micro_batches.py")


@pytest.mark.distributed
@pytest.mark.calm
@pytest.mark.timeout(420)
def test_a_users_own_options_are_tuned_within_what_they_require(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    environment |= {"ADVISOR_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    command = ["torchrun", "--nproc-per-node", "2", "train.py", "--micro", "2", "--accumulate", "4"]

    def call(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
        )

    done = call(
        sys.executable, "-m", "advisor", "tune", "--minutes", "3", "--trials", "1", "--block-seconds", "0.4",
        "--output", "advice", "--json", "--try", "micro=2,8:exact", "--try", "accumulate=1,4:exact",
        "--require", "micro * accumulate == 8", "--knob", "sync_nccl_allreduce", "--", *command,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    advice = json.loads(done.stdout)
    assert advice["verdict"] == "change", advice["headline"]
    assert {name: advice["changes"][name] for name in ("micro", "accumulate")} == {
        "micro": 8,
        "accumulate": 1,
    }
    assert advice["gain"]["low"] > 1.5, advice["headline"]

    file = read_strategy_file((tmp_path / "advice" / "strategy.json").read_text())
    assert [(knob.name, knob.at, knob.own_value) for knob in file.own] == [
        ("micro", "--micro", 2), ("accumulate", "--accumulate", 4),
    ]  # fmt: skip
    assert "--micro 8 --accumulate 1" in (tmp_path / "advice" / "run.sh").read_text()
    strategy = str(tmp_path / "advice" / "strategy.json")
    trained = call(
        sys.executable, "-m", "advisor", "run", "--strategy", strategy, "--", *command, "--steps", "40"
    )
    assert trained.returncode == 0, trained.stderr[-4000:]
    assert "micro 8: 8 since the launch: --micro in the command." in trained.stderr
