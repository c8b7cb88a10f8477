"""Starts a session's processes behind a shim, tells how they end, and makes sure that none is left."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import structlog

from agent.guard import processes
from agent.guard.shim import Order

_SHIM = "agent.guard.shim"
_PACKAGE_ROOT = Path(__file__).parents[2]

log = structlog.get_logger(__name__)


class LaunchedSession:
    """A pair of shims and everything below it. Leaving the `with` block kills what still runs."""

    def __init__(self, order: Order, agent_marker: str, session_marker: str) -> None:
        """Start `order`."""
        # Both: another agent on this machine may hold a place in the same session.
        self._markers = {processes.AGENT_MARKER: agent_marker, processes.SESSION_MARKER: session_marker}
        self._unprotected = ""
        self._exit_code: int | None = None
        self._exited = threading.Event()
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(_PACKAGE_ROOT),
            processes.AGENT_MARKER: agent_marker,
        }
        self._shim = subprocess.Popen(
            [sys.executable, "-S", "-m", _SHIM],  # it needs nothing that is installed
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the agent's terminal is the agent's to answer
        )
        self._listener = threading.Thread(target=self._listen, name="shim", daemon=True)
        self._listener.start()
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(order.to_line())
            self._pipe.flush()
        os.set_blocking(self._pipe.fileno(), False)  # a shim that is stopped must not hold up the guard

    def __enter__(self) -> "LaunchedSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(timeout_s=10.0)

    @property
    def root_pid(self) -> int:
        """The outer shim, whose descendants are the session's processes."""
        return self._shim.pid

    @property
    def exit_code(self) -> int | None:
        """The launcher's exit code (negative: a signal); None while it runs, or when the shim died before it."""
        return self._exit_code

    @property
    def unprotected(self) -> str:
        """Why nothing was started: what could not be protected (`overlay /data: Invalid argument`); else empty."""
        return self._unprotected

    def owns(self, pid: int) -> bool:
        """Whether a process is a descendant of the shim; nothing that a process says about itself counts."""
        return pid in processes.list_descendants(self._shim.pid)

    def keep_alive(self, silence_s: float) -> None:
        """Tell the shim that the agent lives and holds its lease, and for how long it may be silent now."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._pipe.fileno(), f"{silence_s:.1f}\n".encode())

    def has_exited(self) -> bool:
        """Whether the launcher ended, or the shim that would know."""
        return self._exited.is_set()

    def wait_exit(self, timeout_s: float) -> bool:
        """Wait for the launcher to end by itself; return whether it did."""
        return self._exited.wait(timeout_s)

    def kill(self, timeout_s: float) -> list[int]:
        """Kill every process of the session; return the ids of those that resisted, which the log tells as well."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._shim.wait(timeout_s / 2)
        # The inner shim may outlive the outer one, which was killed: it holds the other end until it is done.
        self._listener.join(timeout_s / 2)
        # Normally finds no process. Both shims may have been killed, and their children then belong to init.
        left = processes.kill_until_none(lambda: processes.list_marked(**self._markers), timeout_s / 2)
        if self._shim.poll() is None and not left:
            self._shim.kill()
            self._shim.wait()
        if left:
            log.error("Processes of the session do not die; the kernel holds them (a driver?).", pids=left)
        return left

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._shim.stdin is not None  # given by PIPE above
        return self._shim.stdin

    def _listen(self) -> None:
        assert self._shim.stdout is not None  # given by PIPE above
        for line in self._shim.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("event") == "unprotected":
                self._unprotected = str(event.get("why"))
            elif event.get("event") == "exited":
                self._exit_code = int(event["code"])
                self._exited.set()
        self._exited.set()


def sweep_leftovers(agent_marker: str, timeout_s: float = 10.0) -> int:
    """Kill what an earlier run of this very agent left behind; return how many processes that were."""
    found = _list_leftovers(agent_marker)
    if found:
        log.warning("Killing what an earlier run of this agent left behind.", pids=found)
        processes.kill_until_none(lambda: _list_leftovers(agent_marker), timeout_s)
    return len(found)


def _list_leftovers(agent_marker: str) -> list[int]:
    """Return what the agent's marker leads to, descendants without a marker included; shims only once all else is gone.

    A shim is what keeps those without a marker findable: when it goes they belong to init.
    """
    marked = processes.list_marked(**{processes.AGENT_MARKER: agent_marker})
    everything = dict.fromkeys(
        [*marked, *(pid for each in marked for pid in processes.list_descendants(each))]
    )
    shims = {pid for pid in marked if processes.is_module(pid, _SHIM)}
    return [pid for pid in everything if pid not in shims] or list(shims)
