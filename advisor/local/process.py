"""One process that local mode started: in its own OS session, with a log, and stopped with all it started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PYTHON = (sys.executable, "-P")
"""Our own Python. It does not look for modules in the user's working directory, which may hold an `agent` too."""

_POLL_S = 0.05


class ProcessDied(Exception):
    """A process of local mode ended although it was still needed."""

    def __init__(self, process: "LocalProcess", exit_code: int) -> None:
        super().__init__(f"The {process.title} stopped with exit code {exit_code}.")
        self.log_path = process.log_path
        self.log_tail = process.log_tail()


class LocalProcess:
    """A started process. Signals of the terminal do not reach it: its owner decides when it stops."""

    def __init__(
        self,
        title: str,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        held: bool = False,
    ) -> None:
        """Start it. One that is `held` waits for a line on its standard input, which `let_go` gives it."""
        self.title = title
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        guarded = [*PYTHON, "-m", "advisor.local.guard", str(os.getpid()), *command]
        with log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE if held else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def let_go(self) -> None:
        """Give a held process the word to begin; one that has ended meanwhile does not hear it."""
        assert self._process.stdin is not None  # given by `held`
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"go\n")
            self._process.stdin.close()

    def check(self) -> None:
        """Raise `ProcessDied` when it runs no more."""
        if (code := self.exit_code) is not None:
            raise ProcessDied(self, code)

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines that it wrote since its start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def ask_to_stop(self) -> None:
        """Send SIGTERM, if it still runs; one that is held hears that no word will come."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.exit_code is None:
            self._process.terminate()

    def stop(self, patience_s: float) -> None:
        """Ask it to stop, wait up to `patience_s` seconds, then kill it and everything it started."""
        self.ask_to_stop()
        deadline = time.monotonic() + patience_s
        while self.exit_code is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if self.exit_code is None:
            # Training processes live in OS sessions of their own: killing this process' group would miss them.
            for pid in [*descendants(self.pid), self.pid]:
                _kill(pid)
            self._process.wait()


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` started, and those that they started, as /proc shows them (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold anything; the fields after it do not.
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
