"""One rank's whole life: silence trackers, arm the patches, run the script, say how it ended."""

from __future__ import annotations

import os
from typing import List

from .. import current
from ..link import stacks
from ..link.control import AgentLost, ControlLine
from ..link.environment import Environment, read_environment
from ..link.rank_output import take_own_output
from ..link.trouble import describe_trouble
from ..nccl_tuner.plugin import load_where_asked
from .after_import import call_after_import
from .script import parse_script, run_script
from .trackers import silence_trackers


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
    from ..levers.computation.convolutions import set_search
    from ..runtime import Runtime
    from .patches import install_patches

    set_search(environment.cold)
    current.set_current(Runtime(environment))
    install_patches()


def _report_ending(environment: Environment) -> None:
    runtime = current.current_runtime
    if runtime is not None:
        runtime.finish_script()
    elif environment.control and environment.rank == 0:
        try:
            ControlLine(environment.control).send_last(describe_trouble("no_ddp", when="ended"))
        except AgentLost:
            return
