"""Planner processes: planning is Python, and in the server's own process they would take the requests' interpreter.

A process reads the database itself; what comes back is small. It lives no longer than the server: its pipe ends then.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection, Pipe

from advisor.errors import AdvisorError, Unavailable
from advisor.protocol.logs import LogFormat
from advisor.services.planning.decided import Choice, VersionedDecision

_log = logging.getLogger(__name__)
_TRIES = 2
"""A process that has died is replaced once for a question; what kills the next one as well would kill every one."""
_SILENT_S = 120.0
"""A process that has not answered for so long hangs: a late suggestion gives way to a simpler one much sooner."""
_NICER = 10
"""How much less of a busy processor these processes get than the server."""


@dataclass(frozen=True)
class Setting:
    """What a process is told when it starts. Not on its command line: a database's address may hold a password."""

    database_url: str
    limit_s: float
    """A suggestion that takes longer is replaced by a simpler one."""
    log_format: LogFormat


@dataclass(frozen=True)
class Question:
    """What comes next for a job?"""

    job_id: str
    now: datetime


class PlannerProcesses:
    """Processes that think, each about one thing at a time; share it between threads.

    One is started whenever all are busy; `kept` of them stay when there is nothing to think about.
    """

    def __init__(self, setting: Setting, kept: int) -> None:
        self._setting, self._kept = setting, kept
        self._lock = threading.Lock()
        self._idle: list[_Planner] = []
        self._all: set[_Planner] = set()
        self._is_closed = False

    def look(self, question: Question) -> VersionedDecision | Choice:
        """Have a process read and decide. Raises what it raised, and Unavailable where processes die."""
        for _ in range(_TRIES):
            planner = self._take()
            try:
                answer = planner.ask(question)
            except (EOFError, OSError):
                with self._lock:
                    self._all.discard(planner)
                code = planner.end()
                if not self._is_closed:
                    _log.warning("A planner process ended (exit code %s) or hung while it thought.", code)
                continue
            self._give_back(planner)
            if isinstance(answer, Exception):
                raise answer
            return answer
        raise Unavailable(
            "The processes that plan keep ending or hang: see the server's log, and the kernel's."
        )

    def close(self) -> None:
        """End all processes, whatever they think about."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = self._all.difference(idle)
            self._all.clear()
        for planner in idle:
            planner.end()
        for planner in busy:
            # Who waits for its answer hears of its end, and puts its pipe away.
            planner.kill()

    def _take(self) -> "_Planner":
        with self._lock:
            if self._is_closed:
                raise Unavailable("The server is stopping.")
            if self._idle:
                return self._idle.pop()
            try:
                planner = _Planner(self._setting)
            except OSError as error:
                raise Unavailable(f"No process that plans could be started: {error}") from error
            self._all.add(planner)
            return planner

    def _give_back(self, planner: "_Planner") -> None:
        with self._lock:
            if len(self._idle) < self._kept and not self._is_closed:
                self._idle.append(planner)
                return
            self._all.discard(planner)
        planner.end()


class _Planner:
    """One process and the pipe to it."""

    def __init__(self, setting: Setting) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # As this process finds its modules, from wherever it was started.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._pipe.send(setting)

    def ask(self, question: Question) -> VersionedDecision | Choice | Exception:
        """Raises EOFError or OSError where the process has ended, or hangs."""
        self._pipe.send(question)
        if not self._pipe.poll(_SILENT_S):
            raise EOFError
        answer: VersionedDecision | Choice | Exception = self._pipe.recv()
        return answer

    def kill(self) -> None:
        """Have the process end, which holds nothing that has to be kept."""
        self._process.kill()

    def end(self) -> int:
        """End the process and put the pipe away; return its exit code."""
        self.kill()
        code = self._process.wait()
        self._pipe.close()
        return code


def serve_decisions(pipe: Connection) -> None:
    """Answer questions until the server that asks them is gone."""
    # Loaded here: the server itself asks for decisions without any of it.
    from advisor.logs import configure_logs
    from advisor.services.planning.decided import Overdue, look
    from advisor.storage import Database
    from advisor.tuning.asked import Tuning

    setting: Setting = pipe.recv()
    configure_logs(setting.log_format, sys.stderr)
    tuning, overdue = Tuning(), Overdue()
    database = Database(setting.database_url, _make_no_id)
    while True:
        asked: Question = pipe.recv()
        answer: VersionedDecision | Choice | Exception
        try:
            answer = look(database, tuning, asked.job_id, asked.now, setting.limit_s, overdue)
        except AdvisorError as error:
            answer = error
        except Exception as error:
            _log.exception("What comes next for job %s could not be thought about", asked.job_id)
            answer = RuntimeError(f"A planner process failed: {error!r}")
        pipe.send(answer)


def _make_no_id() -> str:
    raise AssertionError("Who thinks writes nothing.")


def _main() -> None:
    # Requests come first: a decision is waited for by one session, a request by every client after it.
    os.nice(_NICER)
    # Ctrl-C stops the server, and this process with it: the pipe ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve_decisions(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # Planning that goes on beyond its deadline is in a thread that would keep the process.
        os._exit(0)


if __name__ == "__main__":
    # By its own name, so that what is sent is of the same classes at both ends.
    from advisor.services.planning import processes

    processes._main()
