"""Processes of local mode: their logs, and that nothing of them is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.local.agents import training_environment
from advisor.local.process import LocalProcess, ProcessDied
from advisor.local.server import server_environment

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""
OWNER = """
import os, sys
from pathlib import Path
from advisor.local.process import LocalProcess
process = LocalProcess("thing", [sys.executable, "-c", "import time; time.sleep(300)"], Path(sys.argv[1]), os.environ)
print(process.pid, flush=True)
sys.stdin.read()
"""


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def start(program: str, log: Path) -> LocalProcess:
    return LocalProcess("thing", [sys.executable, "-c", program], log, ENVIRONMENT)


def test_stopping_kills_what_ignores_sigterm_and_its_children_in_other_sessions(tmp_path: Path) -> None:
    process = start(STUBBORN, tmp_path / "log")
    wait_until(lambda: process.log_tail().strip().isdigit())
    child = int(process.log_tail())
    assert is_alive(child)
    process.stop(patience_s=0.2)
    assert not is_alive(process.pid)
    wait_until(lambda: not is_alive(child))


def test_death_is_told_with_exit_code_and_the_end_of_this_starts_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of an earlier start\n")
    process = start("print('no such device'); raise SystemExit(7)", tmp_path / "log")
    wait_until(lambda: process.exit_code is not None)
    with pytest.raises(ProcessDied, match="The thing stopped with exit code 7") as raised:
        process.check()
    assert raised.value.log_tail == "no such device"


def test_process_is_asked_to_stop_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert owner.stdout
    orphan = int(owner.stdout.readline())
    # The guard has to have become the command before its owner goes.
    wait_until(lambda: "advisor.local.guard" not in Path(f"/proc/{orphan}/cmdline").read_text())
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: not is_alive(orphan))


def test_terminal_signals_do_not_reach_it(tmp_path: Path) -> None:
    process = start("import time; time.sleep(300)", tmp_path / "log")
    try:
        assert os.getsid(process.pid) != os.getsid(0)
    finally:
        process.stop(patience_s=5)


def test_server_of_this_machine_speaks_plainly_whatever_the_user_serves_elsewhere() -> None:
    given = {"ADVISOR_TLS_CERTIFICATE": "a.pem", "ADVISOR_TLS_KEY": "a.key", "ADVISOR_LEASE_S": "9"}
    assert server_environment(given) == {"ADVISOR_PLANNER_PROCESSES": "0", "ADVISOR_LEASE_S": "9"}


def test_trainings_get_the_users_path_first_and_no_token_of_ours() -> None:
    given = {"PATH": "/usr/local/train", "ADVISOR_TOKEN": "adv_admin_a_b", "HOME": "/root"}
    environment = training_environment(given)
    assert environment["PATH"].split(":")[0] == "/usr/local/train"
    assert environment["PATH"].endswith(str(Path(sys.executable).parent))
    assert "ADVISOR_TOKEN" not in environment
    assert environment["HOME"] == "/root"
