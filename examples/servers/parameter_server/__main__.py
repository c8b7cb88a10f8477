"""Starts this node's roles, and ends all roles on all nodes when one of them fails.

Every role is a fork of this process, which has imported torch once and never computes itself.
"""

import argparse
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from .nodes import OtherNodes
from .options import read_options
from .placement import lay_out_nodes
from .trainer import serve, train

_PR_SET_PDEATHSIG = 1
_PAUSE_S = 0.05


def main() -> int:
    """Return the exit code: 0 when all roles have come to their regular end."""
    options = read_options()
    if options.transport == "auto":
        options.transport = "sockets" if options.nodes > 1 else "all"
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    others = OtherNodes(options)
    roles: dict[int, str] = {}
    try:
        for name, run in _list_roles(options, others.stores):
            roles[_fork(run)] = name
        failure = _watch(roles, others)
    except KeyboardInterrupt:
        failure = f"Node {options.node_rank} was interrupted"
        others.say_failed(failure)
    except SystemExit:
        others.say_failed(f"Node {options.node_rank} was asked to end")
        raise
    finally:
        _end(roles)
    if failure:
        print(f"{failure}; all roles on all nodes were ended.", file=sys.stderr, flush=True)
    return 1 if failure else 0


def _list_roles(options: argparse.Namespace, stores: Sequence[str]) -> list[tuple[str, Callable[[], None]]]:
    of_trainers, of_servers = lay_out_nodes(
        options.trainers, options.servers, options.nodes, options.trainer_nodes, options.place
    )
    if options.architecture == "collective":
        of_servers = []
    kinds = (("trainer", of_trainers, train), ("server", of_servers, serve))
    return [
        (f"{kind} {number}", partial(run, options, number, stores))
        for kind, nodes, run in kinds
        for number, node in enumerate(nodes)
        if node == options.node_rank
    ]


def _fork(run: Callable[[], None]) -> int:
    parent = os.getpid()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            run()
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing is torn down: threads of gloo and TensorPipe now and then abort a process that leaves them.
        os._exit(code)


def _watch(roles: dict[int, str], others: OtherNodes) -> str:
    """Return when all have ended: why they had to, or an empty text."""
    has_said = False
    while roles or not others.have_ended():
        failure = others.hear(_PAUSE_S) or _reap(roles)
        if failure:
            others.say_failed(failure)
            return failure
        if not roles and not has_said and not others.is_first:
            others.say_ended()
            has_said = True
    if others.is_first:
        # Last of all: a node whose line to node 0 breaks before that takes it for a failure.
        others.say_ended()
    return ""


def _reap(roles: dict[int, str]) -> str:
    """Take note of roles that have ended; return a sentence about one that failed, first of one that was killed."""
    failures = []
    for pid, name in list(roles.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            continue
        del roles[pid]
        code = os.waitstatus_to_exitcode(status)
        if code:
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            failures.append((code, f"The role {name} {ended}"))
    return min(failures)[1] if failures else ""


def _end(roles: dict[int, str]) -> None:
    for pid in roles:
        os.kill(pid, signal.SIGKILL)
    for pid in roles:
        os.waitpid(pid, 0)
    roles.clear()


if __name__ == "__main__":
    sys.exit(main())
