"""What runs beside a real training is nobody's child, starts before it and ends with it."""

import subprocess
import sys
from pathlib import Path

START = """
import os, sys
from agent.production.beside import start_beside
ready = start_beside(sys.argv[1], sys.argv[2], within_s=60.0)
os.execv(sys.executable, [sys.executable, "-S", "-c", sys.argv[3], str(ready)])
"""
WAITS_FOR_ALL = """
import os, sys
try:
    os.wait()
except ChildProcessError:
    print(sys.argv[1])
"""


def train(module: str, word: str) -> str:
    """Start a module beside a command that waits for all its children; return what that said when both have ended."""
    done = subprocess.run(
        [sys.executable, "-c", START, module, word, WAITS_FOR_ALL],
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


def test_a_process_that_does_not_start_is_known() -> None:
    assert train("agent.production.no_such_module", "") == "False"
