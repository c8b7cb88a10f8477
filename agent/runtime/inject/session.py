"""One rank's whole life: silence trackers, arm the patches, run the script, say how it ended."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass
from typing import List, Optional, Sequence

from .. import current
from ..guard import FAILED, describe_failure, stand_before
from ..link import stacks
from ..link.control import AgentLost, ControlLine
from ..link.environment import Environment, read_environment
from ..link.rank_output import flush_output, say, say_traceback, take_own_output
from ..link.trouble import describe_trouble
from ..nccl_tuner.plugin import load_where_asked
from .after_import import call_after_import
from .trackers import silence_trackers


@dataclass(frozen=True)
class Script:
    """What to run: either a file or a module, and its arguments."""

    path: Optional[str]
    module: Optional[str]
    arguments: Sequence[str]


def parse_script(arguments: List[str]) -> Script:
    """`[-m module | script.py] args…`, as python itself reads it."""
    if arguments and arguments[0] == "-m":
        if len(arguments) < 2:
            raise SystemExit("fleet advisor: -m needs the name of a module.")
        return Script(None, arguments[1], arguments[2:])
    if not arguments:
        raise SystemExit("fleet advisor: no script given; usage: launch.py [-m module | script.py] args…")
    return Script(arguments[0], None, arguments[1:])


def run_script(script: Script) -> None:
    """Returns when the script has ended; its exceptions and SystemExit pass through."""
    if script.module is not None:
        sys.path[0] = os.getcwd()
        sys.argv = [script.module, *script.arguments]
        runpy.run_module(script.module, run_name="__main__", alter_sys=True)
        return
    path = script.path or ""
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        del sys.path[0]  # runpy puts the archive or folder there itself
    else:
        # Python uses the folder of the resolved link, but keeps the path as given in argv.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.argv = [path, *script.arguments]
    runpy.run_path(path, run_name="__main__")


def run(arguments: List[str]) -> None:
    """Runs the script to its end. A crash of the script passes through untouched: the agent reads it from the log."""
    script = parse_script(arguments)
    environment = read_environment()
    process_id = os.getpid()
    silence_trackers(os.environ, environment.session_dir)
    keep_launch_order()
    load_where_asked(os.environ, environment.session_dir)
    take_own_output(environment.rank, os.environ)
    listen_for_signals(environment)
    call_after_import("torch", lambda: start_runtime(environment))
    try:
        run_script(script)
    except SystemExit as ending:
        if ending.code not in (None, 0):
            raise
        if os.getpid() == process_id:  # a forked child of the script comes through here as well
            _report_ending(environment)
        raise
    if os.getpid() == process_id:
        _report_ending(environment)


def keep_launch_order() -> None:
    """Has NCCL (2.26 or later) launch the collectives of several communicators in one order on every rank.

    NCCL reads it when the first one is made; with one communicator it changes nothing.
    """
    os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")


def listen_for_signals(environment: Environment) -> None:
    """Lets the agent ask this rank where its threads are."""
    if environment.session_dir:
        stacks.arm(environment.session_dir, environment.rank)


def start_runtime(environment: Environment) -> None:
    """Makes this process a rank that is observed and switched: the one place that arms. Torch has been imported."""
    try:
        _arm(environment)
    except Exception as error:
        current.set_current(None)
        say_traceback(error)
        if environment.control is not None and environment.strategy is None and environment.is_rank:
            say(f"rank {environment.rank}: {describe_failure(error)}")
            flush_output()
            os._exit(FAILED)
        say(f"The training goes on by itself: {describe_failure(error)}")


def _arm(environment: Environment) -> None:
    from ..levers.computation.convolutions import set_search
    from ..runtime import Runtime
    from .other_readers import watch_other_readers
    from .patches import install_patches

    set_search(environment.cold)
    current.set_current(stand_before(Runtime(environment)))
    watch_other_readers()
    install_patches()  # once: a process that has trained alone may join a group


def _report_ending(environment: Environment) -> None:
    runtime = current.current_runtime
    if runtime is not None:
        runtime.finish_script()
    elif environment.control and environment.rank == 0 and "torch" not in sys.modules:
        try:
            ControlLine(environment.control).send_last(describe_trouble("no_torch"))
        except AgentLost:
            return
