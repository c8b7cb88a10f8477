"""However `advisor tune` ends, nothing that it started is left, and the job can go on."""

import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from .conftest import advisor, processes_of, ranks_of, start_advisor, wait_until

pytestmark = pytest.mark.distributed

WAITS = "import time; time.sleep(600)"


def start_tuning(tmp_path: Path, data_dir: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a tuning of a script that never trains; returns once both of its ranks run."""
    (tmp_path / "train.py").write_text(WAITS)
    command = ("tune", "--", "torchrun", "--nproc-per-node", "2", "train.py")
    tuning = start_advisor(*command, environment=environment, cwd=tmp_path)

    def ranks_run() -> bool:
        assert tuning.poll() is None, tuning.stderr and tuning.stderr.read()
        return len(ranks_of(data_dir)) >= 2

    wait_until(ranks_run, "two ranks run")
    return tuning


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_stopped_tune_leaves_no_process_and_its_second_run_no_launch_to_the_agent_of_the_first(
    stop: signal.Signals, tmp_path: Path, data_dir: Path, environment: dict[str, str]
) -> None:
    first = start_tuning(tmp_path, data_dir, environment)
    first.send_signal(stop)
    _, told = first.communicate(timeout=60)
    if stop is signal.SIGINT:
        assert first.returncode == 130, told
        assert "advisor tune --resume" in told
        assert not processes_of(data_dir)
        (tmp_path / "other.py").write_text(WAITS)
        launch = ("torchrun", "--nproc-per-node", "2", "other.py")
        other = advisor("tune", "--", *launch, environment=environment, cwd=tmp_path)
        assert other.returncode == 2
        assert "was interrupted and would be measured first" in other.stderr
    wait_until(lambda: not processes_of(data_dir), "every process of the first run is gone")

    second = start_tuning(tmp_path, data_dir, environment)
    with sqlite3.connect(f"file:{data_dir / 'advisor.db'}?mode=ro", uri=True) as database:
        sessions = database.execute("SELECT state, reason FROM sessions ORDER BY generation").fetchall()
    assert [state for state, _ in sessions[1:]] == ["running"], sessions
    second.terminate()
    _, told = second.communicate(timeout=60)
    assert second.returncode == 130, told
    assert not processes_of(data_dir)


def test_agent_that_cannot_start_is_explained_with_its_log(
    tmp_path: Path, data_dir: Path, environment: dict[str, str]
) -> None:
    data_dir.mkdir()
    (tmp_path / "train.py").write_text(WAITS)
    (data_dir / "agents").write_text("a file where the agents' directories should be")
    failed = advisor(
        "tune", "--", "torchrun", "--nproc-per-node", "2", "train.py", environment=environment, cwd=tmp_path
    )
    assert failed.returncode == 1
    assert "agent local-1" in failed.stderr
    assert "  | " in failed.stderr
    assert not processes_of(data_dir)
