"""What the runtime says never ends, delays or disturbs a training, wherever standard error leads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SAY = "from agent.runtime.link.rank_output import say, say_traceback; say('once'); say_traceback(ValueError('ours'));"
ODD = {
    "full disk": "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 2);",
    "descriptors closed": "import os, sys; os.close(2); os.close(1);",
    "closed": "import sys; sys.stderr.close();",
    "none": "import sys; sys.stderr = None;",
    "reader gone": "import os, sys; r, w = os.pipe(); os.dup2(w, 2); os.close(r);",
    "reader gone, and a signal for that": (
        "import os, sys, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL);"
        "r, w = os.pipe(); os.dup2(w, 2); os.close(r);"
    ),
    "reader stopped": (
        "import os, sys; r, w = os.pipe(); os.dup2(w, 2); os.set_blocking(2, False)\n"
        "try:\n"
        "    while True: os.write(2, b'x' * 65536)\n"
        "except BlockingIOError: os.set_blocking(2, True)\n"
    ),
    "an object of the script's": "import sys; sys.stderr = type('Log', (), {'write': lambda self, text: 1 / 0})();",
}


LATER = "import os, sys; closed = getattr(sys.stderr, 'closed', True) or sys.stderr.flush(); os._exit(7)"
"""The script's own flush finds nothing of ours."""


@pytest.mark.parametrize("how", ODD)
def test_process_goes_on(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{ODD[how]}\n{SAY}\n{LATER}"],
        cwd=ROOT, timeout=60, check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 7
    assert not done.stdout, "what belongs on standard error is not written elsewhere"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it.")
def test_run_starts_its_command_where_its_greeting_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agent.production", "--set", "num_threads=1", "--", "sh", "-c", "exit 7"],
            cwd=ROOT, timeout=60, check=False, stderr=full, stdout=full,
        )  # fmt: skip
    assert done.returncode == 7
