"""`advisor tune --testbed`: a slow link makes communication knobs worth having, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from advisor.local.namespaces import NAMESPACES, RECORDS, remove_leftovers
from tests.testbed.network import requires_testbed

pytestmark = [pytest.mark.testbed, pytest.mark.distributed, pytest.mark.calm, requires_testbed]

ROOT = Path(__file__).parents[3]
PATIENCE_S = 90
MARK = "PROCESSES_OF_TEST"
"""A variable that everything started by a command inherits: the user's environment is the training's."""
SMALL_DECODER = ("--workload", "decoder", "--", "--width", "128", "--layers", "2", "--vocabulary", "2048")


def tune_command(tmp_path: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and a user's environment without any advisor in it but one of this test's own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    environment |= {
        "ADVISOR_DATA_DIR": str(tmp_path / "data"),
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        MARK: str(tmp_path),
    }
    return [
        sys.executable,
        "-m",
        "advisor",
        "tune",
        "--output",
        str(tmp_path / "advice"),
        *words,
    ], environment


def tune(tmp_path: Path, *words: str, patience_s: float) -> dict:
    """Run a whole job and return its advice."""
    command, environment = tune_command(tmp_path, *words)
    done = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def owned_namespaces(pid: int) -> list[str]:
    """Return the namespaces that a process has written down as its own."""
    texts = [path.read_text() for path in RECORDS.glob("*.json")]
    records = [json.loads(text) for text in texts if text]
    return [name for record in records if record["pid"] == pid for name in record["names"]]


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.1)


def processes_of(tmp_path: Path, variable: str = MARK) -> list[psutil.Process]:
    """Return every process that a command of this test started, however indirectly, and that has the variable."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(MARK) == str(tmp_path) and variable in environment:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.mark.alone
@pytest.mark.timeout(360)
def test_slow_link_makes_communication_knobs_worth_having(tmp_path: Path) -> None:
    options = ("--testbed", "nodes=2,rate=200mbit", "--nproc-per-node", "1", "--allow", "numeric")
    # What gains, what gains less, what gains nothing, and what is not allowed: benchmarks search over every knob.
    names = ("fp16_allreduce", "fuse_grad_size_in_MB", "num_iteration_per_drop_scope", "localsgd")
    knobs = [word for name in names for word in ("--knob", name)]
    budget = ("--minutes", "3", "--trials", "3", "--json")
    advice = tune(tmp_path, *options, *knobs, *budget, *SMALL_DECODER, patience_s=320)
    print(advice["headline"])
    assert advice["verdict"] == "change", advice["headline"]
    assert advice["gain"]["low"] > 1.1
    assert "fp16_allreduce" in advice["changes"]
    assert advice["diagnosis"]["bound"] == "communication"
    assert any(rung["effect"] == "convergence" for rung in advice["ladder"])
    # Nobody may take it for what the real network brings.
    assert "a testbed on one machine, links shaped to 200mbit" in advice["headline"]
    assert "a testbed on one machine" in advice["cluster"]
    assert "a testbed on one machine" in (tmp_path / "advice" / "report.html").read_text()
    assert not processes_of(tmp_path)


@pytest.mark.timeout(240)
def test_testbed_of_a_tuning_that_was_interrupted_is_gone_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    launch = ("--", "torchrun", "--nproc-per-node", "1", "train.py")
    command, environment = tune_command(tmp_path, "--testbed", "nodes=2,rate=100mbit", *launch)
    tuning = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:

        def ranks_run() -> bool:
            assert tuning.poll() is None, tuning.stderr and tuning.stderr.read()
            return len(processes_of(tmp_path, "RANK")) >= 2

        wait_until(ranks_run, "a rank runs on each node")
        names = owned_namespaces(tuning.pid)
        assert len(names) == 3
        tuning.send_signal(signal.SIGINT)
        tuning.communicate(timeout=PATIENCE_S)
        wait_until(lambda: not processes_of(tmp_path), "every process is gone")
        assert not any((NAMESPACES / name).exists() for name in names)
        assert not owned_namespaces(tuning.pid)
    finally:
        for process in processes_of(tmp_path):
            process.kill()
        remove_leftovers()
