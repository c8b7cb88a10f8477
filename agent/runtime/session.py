"""One rank's whole life: silence trackers, arm the patches, run the script, say how it ended."""

from __future__ import annotations

import os
from typing import List

from . import current
from .control import AgentLost, ControlLine
from .environment import Environment, read_environment
from .script import parse_script, run_script
from .torch_import import call_after_torch_import
from .trackers import silence_trackers
from .trouble import describe_trouble


def run(arguments: List[str]) -> None:
    """Runs the script to its end. A crash of the script passes through untouched: the agent reads it from the log."""
    script = parse_script(arguments)
    environment = read_environment()
    silence_trackers(os.environ, environment.session_dir)
    call_after_torch_import(lambda: _start_runtime(environment))
    try:
        run_script(script)
    except SystemExit as ending:
        if ending.code in (None, 0):
            _report_ending(environment)
        raise
    _report_ending(environment)


def _start_runtime(environment: Environment) -> None:
    from .patches import install_patches
    from .runtime import Runtime

    current.set_current(Runtime(environment))
    install_patches()


def _report_ending(environment: Environment) -> None:
    runtime = current.current_runtime
    if runtime is not None:
        runtime.finish_script()
    elif environment.control and environment.rank == 0:
        try:
            line = ControlLine(environment.control)
            line.send(describe_trouble("no_ddp", when="ended"))
            line.close()
        except AgentLost:
            return
