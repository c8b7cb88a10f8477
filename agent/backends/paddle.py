"""Builds what is started for a Paddle script: its own launch command, with a preload that sets and measures it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from advisor.protocol.measured.messages import Assignment
from agent.backends.command import build_with_values, fill_words
from agent.backends.launch import Launch, SessionPlace

PRELOAD = Path(__file__).parent / "paddle_preload"
"""The only folder of ours that the script's Python sees."""


def list_words(assignment: Assignment, rendezvous: str, place: SessionPlace) -> tuple[str, ...]:
    """Return the command's words; it is given nothing but changes."""
    return fill_words(assignment, rendezvous, place, assignment.cold)


def build_launch(
    assignment: Assignment, rendezvous: str, place: SessionPlace, environment: Mapping[str, str]
) -> Launch:
    """Return the launch of this node's part of the script; `environment` is the agent's own.

    The script's own values are the baseline, so only changes are handed in. Raises Unlaunchable when the command
    cannot work on this node.
    """
    launch = build_with_values(assignment, rendezvous, place, environment, assignment.cold)
    inherited = launch.environment.get("PYTHONPATH")
    path = os.pathsep.join([str(PRELOAD), *([inherited] if inherited else [])])
    return replace(launch, environment={**launch.environment, "PYTHONPATH": path})
