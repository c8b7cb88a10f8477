"""What runs beside a real training is nobody's child, starts before it and ends with it."""

import json
import subprocess
import sys
from pathlib import Path

START = """
import ctypes, os, sys
if sys.argv[4:]:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
from agent.production.beside import start_beside
ready = start_beside(sys.argv[1], sys.argv[2], within_s=60.0)
os.execv(sys.executable, [sys.executable, "-S", "-c", sys.argv[3], str(ready)])
"""
WAITS_FOR_ALL = """
import os, sys
try:
    while True:
        os.wait()
except ChildProcessError:
    print(sys.argv[1])
"""


def train(module: str, word: str, *adopting: str) -> str:
    """Start a module beside a command that waits for all its children; return what that said when both have ended.

    `adopting`: the command becomes the parent of whatever has lost its own, as a container's first process does.
    """
    done = subprocess.run(
        [sys.executable, "-c", START, module, word, WAITS_FOR_ALL, *adopting],
        capture_output=True,  # the process beside has the standard error until its end
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout.strip()


def test_a_launcher_that_waits_for_all_its_children_ends_and_the_copies_go(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "c.yaml").touch()
    assert train("agent.production.beside", str(copies)) == "True"
    assert not copies.exists()


def test_a_launcher_that_adopts_them_ends_as_well(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    assert train("agent.production.beside", str(copies), "adopting") == "True"
    limits = {"seconds": 0.1, "lost_s": 1, "left": [], "start": {}, "own": {}, "command": ["true"]}
    folder = tmp_path / "tuner"
    folder.mkdir(mode=0o700)
    places = {"folder": str(folder), "output": str(tmp_path / "strategy.json")}
    assert train("agent.production.tuner", json.dumps({**limits, **places}), "adopting") == "True"
    assert not folder.exists()


def test_a_process_that_does_not_start_is_known() -> None:
    assert train("agent.production.no_such_module", "") == "False"
