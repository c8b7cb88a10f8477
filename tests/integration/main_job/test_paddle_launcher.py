"""The launcher of Paddle's servers, with programs in the place of Paddle's roles: how it ends, and what it leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

LAUNCHER = Path(__file__).parents[3] / "agent" / "workloads" / "paddle_servers.py"
ROLE = """
import json, os, pathlib, sys, time
ends, code, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
told = {name: text for name, text in os.environ.items() if name.startswith("PADDLE") or name == "TRAINING_ROLE"}
(folder / "new").mkdir(exist_ok=True)
(folder / "new" / str(os.getpid())).write_text(json.dumps({"pid": os.getpid(), **told}))
(folder / "new" / str(os.getpid())).rename(folder / f"{os.getpid()}.json")
while told["TRAINING_ROLE"] != ends or len(list(folder.glob("*.json"))) < 4:
    time.sleep(0.05)
sys.exit(code)
"""
"""Writes what it was told, and ends with a code, if it is the role for it, when all roles have."""


def start(ends: str, code: int, folder: Path) -> subprocess.Popen[str]:
    words = [
        "--servers",
        "2",
        "--trainers",
        "2",
        "--",
        sys.executable,
        "-c",
        ROLE,
        ends,
        str(code),
        str(folder),
    ]
    return subprocess.Popen([sys.executable, LAUNCHER, *words], stderr=subprocess.PIPE, text=True)


def read_roles(folder: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def is_any_left(roles: list[dict[str, str]]) -> bool:
    return any(psutil.pid_exists(int(role["pid"])) for role in roles)


@pytest.mark.parametrize(
    ("ends", "code", "exit_code", "said"),
    [
        ("TRAINER", 0, 0, ""),
        ("TRAINER", 3, 3, "ended with exit code 3."),
        ("PSERVER", 0, 1, "ended before the trainers did."),
    ],
)
def test_a_training_ends_with_its_trainers_or_with_the_first_fault(
    ends: str, code: int, exit_code: int, said: str, tmp_path: Path
) -> None:
    started = start(ends, code, tmp_path)
    _, faults = started.communicate(timeout=60)
    assert (started.returncode, said in faults) == (exit_code, True)
    roles = read_roles(tmp_path)
    assert sorted((role["TRAINING_ROLE"], role["PADDLE_TRAINER_ID"]) for role in roles) == [
        ("PSERVER", "0"), ("PSERVER", "1"), ("TRAINER", "0"), ("TRAINER", "1"),
    ]  # fmt: skip
    servers, trainers = (
        roles[0][name].split(",") for name in ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS")
    )
    assert len({*servers, *trainers}) == 4
    for role in roles:
        own = servers if role["TRAINING_ROLE"] == "PSERVER" else trainers
        assert own[int(role["PADDLE_TRAINER_ID"])].endswith(f":{role['PADDLE_PORT']}")
    assert not is_any_left(roles)


def test_a_launcher_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    started = start("NONE", 0, tmp_path)
    while len(read_roles(tmp_path)) < 4:
        assert started.poll() is None
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGTERM)
    started.communicate(timeout=60)
    assert started.returncode == 128 + signal.SIGTERM
    assert not is_any_left(read_roles(tmp_path))
