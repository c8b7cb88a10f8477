"""The guard between the agent and the training: two processes of their own that outlive neither.

agent → outer shim → inner shim → launcher → ranks. The agent holds the write end of the outer shim's standard input,
which hands on what comes. When that closes, however the agent died, or when no sign of the agent's life came for too
long, the inner shim kills everything below it. As a child subreaper it inherits every orphan, so nothing escapes by
double-forking or by an OS session of its own. Each shim does the same when the other one is killed, and the outer one
when the inner one does not do it. Standard library only; run as `python -m agent.guard.shim`.

Standard input: one JSON line (`Order`), then bytes that only mean "I hold the lease". Standard output: JSON lines
{"event": "unprotected", "why"} when a file system takes no overlay, so that nothing is started, and
{"event": "exited", "code"} (negative: a signal).
"""

import ctypes
import json
import math
import os
import select
import selectors
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.guard import mounts
from agent.guard.account import Account, become
from agent.guard.caches import Cache, settle_caches
from agent.guard.processes import kill_until_none, list_descendants
from agent.guard.rank_outputs import RankOutputs, read_rest
from agent.guard.session_log import LogWriter
from agent.runtime.link.rank_output import OUTPUT

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_TIMEOUT_S = 60.0
_INNER_GRACE_S = 10.0
"""Time that the inner shim has to end everything, before the outer one ends it as well."""
_NO_SUCH_COMMAND = 127


@dataclass(frozen=True)
class Order:
    """What the shim is to start."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    working_dir: str
    log_folder: str
    mount_plan: mounts.MountPlan
    account: Account | None
    """The user to run as; None: the agent's own."""
    silence_s: float
    """The longest time without a sign of the agent's life, which names the next one: an agent that is stopped cannot
    fence its ranks itself."""
    meeting_folder: str = ""
    """The agent's folder in which the ranks find a socket for their output; empty: there is none."""
    caches: tuple[Cache, ...] = ()
    """Those that belong to the job."""

    def to_line(self) -> bytes:
        """Return the line for the shim's standard input: never its arguments, which everybody can read."""
        return json.dumps({**asdict(self), "mount_plan": self.mount_plan.to_json()}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Order":
        """Return the order in a line that `to_line` wrote."""
        data: dict[str, Any] = json.loads(line)
        data["argv"] = tuple(data["argv"])
        data["mount_plan"] = mounts.MountPlan.from_json(data["mount_plan"])
        data["caches"] = tuple(Cache(**cache) for cache in data["caches"])
        data["account"] = Account(**data["account"]) if data["account"] else None
        return cls(**data)


def main() -> None:
    """Run the inner shim, and leave nothing behind however it ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outer = os.getpid()
    reading, writing = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.dup2(reading, sys.stdin.fileno())
        os.close(writing)
        _run_inner(outer)
        return
    os.close(reading)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        _hand_on(os.pidfd_open(inner), writing)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_until_none(lambda: list_descendants(outer), _KILL_TIMEOUT_S)


def _hand_on(inner: int, to_inner: int) -> None:
    """Hand on what the agent says until the inner shim has ended, or has not although the agent is gone or silent."""
    os.set_blocking(to_inner, False)
    unsent = line = b""
    silent_at_s = math.inf
    while time.clock_gettime(time.CLOCK_BOOTTIME) < silent_at_s:
        ready, _, _ = select.select([sys.stdin, inner], [to_inner] if unsent else [], [], 1.0)
        if inner in ready:
            return
        if sys.stdin in ready:
            said = os.read(sys.stdin.fileno(), 65536)
            if not said:
                break
            unsent += said
            *whole, line = (line + said).split(b"\n")
            if whole:
                told = json.loads(whole[-1])
                silence_s = float(told["silence_s"] if isinstance(told, dict) else told)
                silent_at_s = time.clock_gettime(time.CLOCK_BOOTTIME) + silence_s
        with suppress(OSError):  # the inner shim has ended, or reads no more
            unsent = unsent[os.write(to_inner, unsent) :]
    os.close(to_inner)
    select.select([inner], [], [], _INNER_GRACE_S)


def _run_inner(outer: int) -> None:
    """Start the order, pass its output to the log, and leave nothing behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != outer:
        return
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return
    order = Order.from_line(line)
    log = LogWriter(Path(order.log_folder))
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    selector = selectors.DefaultSelector()
    ranks = _listen_to_ranks(order, write_end, log, selector)
    child = _start(order, write_end)
    os.close(write_end)
    try:
        code = _attend(child, read_end, log, order.silence_s, selector, ranks)
        if code is not None:
            _tell_exit(code)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_until_none(lambda: list_descendants(os.getpid()), _KILL_TIMEOUT_S)
        if ranks is not None:
            ranks.drain()
        read_rest(read_end, log.write)


def _listen_to_ranks(
    order: Order, output: int, log: LogWriter, selector: selectors.BaseSelector
) -> RankOutputs | None:
    """Tell the ranks where to bring pipes of their own; None where they have no folder, or no socket can be there."""
    if not order.meeting_folder:
        return None
    try:
        ranks = RankOutputs(Path(order.meeting_folder), log.write, selector, order.account)
    except OSError:
        return None
    order.environment[OUTPUT] = f"{ranks.path}:{os.fstat(output).st_ino}"
    return ranks


def _start(order: Order, output: int) -> int:
    shim = os.getpid()
    child = os.fork()
    if child:
        return child
    # From here on in the child, which either becomes the launcher or says why not and leaves.
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        report = os.dup(1)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        try:
            covered = mounts.enter(order.mount_plan, order.account)
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
            os.write(report, json.dumps({"event": "unprotected", "why": why}).encode() + b"\n")
            os._exit(_NO_SUCH_COMMAND)
        os.close(report)
        become(order.account)
        settle_caches(order.caches, covered, order.environment)
        os.chdir(order.working_dir)
        # After the user namespace and the change of user, which clear it. A belt only: SIGTERM lets torchrun take its
        # ranks along.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == shim:
            os.execvpe(order.argv[0], list(order.argv), order.environment)  # noqa: S606
    except BaseException as error:
        os.write(2, f"{order.argv[0]} cannot be started: {error}\n".encode())
    os._exit(_NO_SUCH_COMMAND)


def _attend(
    child: int,
    output: int,
    log: LogWriter,
    silence_s: float,
    selector: selectors.BaseSelector,
    ranks: RankOutputs | None,
) -> int | None:
    """Pass output on until the child exits (its code), or the agent lets go or is silent for too long (None)."""
    child_file = os.pidfd_open(child)
    heard_at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        selector.register(child_file, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select(timeout=1.0)}
            now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            if sys.stdin.fileno() in ready:
                said = os.read(sys.stdin.fileno(), 4096)
                if not said:
                    return None
                heard_at_s, silence_s = now_s, float(said.split()[-1])
            if now_s - heard_at_s > silence_s:
                return None
            if output in ready:
                with suppress(BlockingIOError):
                    data = os.read(output, 65536)
                    log.write(data)
                    if not data:
                        selector.unregister(output)
            if ranks is not None:
                ranks.read(ready, now_s)
            code = _reap(child)
            if code is not None:
                return code


def _reap(child: int) -> int | None:
    """Collect dead children, adopted ones too; return the exit code of `child` when it was among them."""
    code = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
    return code


def _tell_exit(code: int) -> None:
    # The agent may be gone already; that is no reason to leave the ranks alive.
    with suppress(OSError):
        os.write(1, json.dumps({"event": "exited", "code": code}).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
