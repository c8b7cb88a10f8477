"""Builds what is started for a Paddle script: its own launch command, with a preload that sets and measures it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agent.backends import command
from agent.backends.launch import Launch, Wanted

PRELOAD = Path(__file__).parent / "paddle_preload"
"""The only folder of ours that the script's Python sees."""


def build_launch(wanted: Wanted, environment: Mapping[str, str]) -> Launch:
    """Return the launch of this node's part of the script; `environment` is the agent's own.

    Raises Unlaunchable when the command cannot work on this node.
    """
    launch = command.build_launch(wanted, environment)
    inherited = launch.environment.get("PYTHONPATH")
    path = os.pathsep.join([str(PRELOAD), *([inherited] if inherited else [])])
    return replace(launch, environment={**launch.environment, "PYTHONPATH": path})
