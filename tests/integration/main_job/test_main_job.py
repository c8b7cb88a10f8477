"""The main job as a user runs it: `advisor tune -- torchrun … train.py` on an unchanged script."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).with_name("train_classifier.py")
ADVISOR = [sys.executable, "-m", "advisor"]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A user's folder with a script and a checkpoint that must survive."""
    folder = tmp_path / "project"
    (folder / "out").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "train.py")
    (folder / "out" / "checkpoint.pt").write_text("precious")
    return folder


def environment_of(tmp_path: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    root = str(Path(__file__).parents[3])
    return environment | {"ADVISOR_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": root, "NO_COLOR": "1"}


def tune_command(*options: str) -> list[str]:
    small = ["--minutes", "1.2", "--trials", "4", "--block-seconds", "0.4", "--output", "advice"]
    launch = ["--", "torchrun", "--nproc-per-node", "2", "train.py"]
    return [*ADVISOR, "tune", *small, *options, *launch]


def processes_of(data_dir: Path) -> list[psutil.Process]:
    """Every process whose command or environment names the data directory or a session of its agents."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(data_dir) in process.environ().get("ADVISOR_DATA_DIR", "") or any(
                str(data_dir) in word for word in process.cmdline()
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.mark.distributed
@pytest.mark.timeout(240)
def test_interrupted_tune_leaves_nothing_running_and_resumes_to_advice_and_leaves_the_users_files_alone(
    workplace: Path, tmp_path: Path
) -> None:
    environment = environment_of(tmp_path)
    running = subprocess.Popen(
        tune_command(), cwd=workplace, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert running.stderr
    for line in running.stderr:
        if " search " in line:
            break
    os.killpg(running.pid, signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert "resume" in stderr
    deadline = time.monotonic() + 5
    while processes_of(tmp_path / "data") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(tmp_path / "data")

    again = subprocess.run(
        tune_command("--json"), cwd=workplace, env=environment, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr[-4000:]
    assert "resum" in again.stderr.lower()
    advice = json.loads(again.stdout)
    assert advice["verdict"] in {"change", "keep", "undecided"}
    if advice["verdict"] == "change":
        assert advice["gain"]["low"] > 1
        assert advice["gain"]["sessions"] >= 2
    assert advice["baseline_samples_per_s"] > 0
    assert {"strategy.json", "report.html"} <= {path.name for path in (workplace / "advice").iterdir()}
    assert (workplace / "out" / "checkpoint.pt").read_text() == "precious"
    assert not (workplace / "out" / "log.txt").exists()
    assert not processes_of(tmp_path / "data")
