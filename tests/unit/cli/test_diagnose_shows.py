"""`advisor diagnose --show`: what would be started, without starting it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def show(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('must not run')")
    (tmp_path / "run.sh").write_text("touch ran\nexport PYTHONPATH=src\n")

    def run(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ADVISOR_TOKEN": "adv_canary", **variables}
        command = [sys.executable, "-P", "-m", "advisor", "diagnose", "--show", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_everything_that_would_be_started_is_shown(show, tmp_path):
    found = show("--json", "--", sys.executable, "train.py", "--help", RANK="3")
    assert found.returncode == 0, found.stderr
    preview = json.loads(found.stdout)
    assert preview["argv"][-2:] == ["train.py", "--help"]
    # A script that python starts is reached through the environment: it may start its ranks itself.
    assert preview["argv"][-3] == sys.executable
    assert preview["working_dir"] == str(tmp_path)
    assert preview["injection"] == "environment"
    assert preview["environment"]["ADVISOR_TUNING"] == "1"
    assert "RANK" in preview["removed"]
    assert preview["protected"] in ([str(tmp_path)], [])


def test_secrets_are_not_shown_and_nothing_runs(show, tmp_path):
    found = show("--env", "WANDB_API_KEY=canary", "--env", "LR=1", "--", "bash", "run.sh")
    assert found.returncode == 0, found.stderr
    assert "canary" not in found.stdout + found.stderr
    assert "WANDB_API_KEY='(not shown)'" in found.stdout
    assert "LR=1" in found.stdout
    assert "injection: environment" in found.stdout
    assert "Note: run.sh seems to start Python without the variables" in found.stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--", "torchrun", "missing.py"), 3, "missing.py does not exist"),
        (("--injection", "launcher", "--", "bash", "run.sh"), 3, "starts the training processes itself"),
        (("--", "mpirun", "train"), 3, "no agent can reach"),
        ((), 2, "Missing argument"),
    ],
)
def test_command_that_cannot_be_started_is_refused(show, words, code, sentence):
    found = show(*words)
    assert found.returncode == code
    assert sentence in found.stderr
