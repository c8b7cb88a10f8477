"""The variables by which ranks find the runtime, and the strategy that a real training is to run under."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Mapping

from ..link.environment import RUN

INVALID = 3
"""Exit code where the strategy cannot be used."""
LEFT_OUT = "this is a trial, so the strategy is left out."
UNCHANGED = "advises no change: your command starts as it is."


def reach_ranks(runtime: str, variables: Mapping[str, str], everywhere: bool) -> Dict[str, str]:
    """By these a script finds `fleet_advisor`; `everywhere`: every Python process finds the runtime.

    `runtime` is the runtime's folder, which may lie in an archive.
    """
    injected = [os.path.join(runtime, "injected")] if everywhere else []
    inherited = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
    return {
        "ADVISOR_RUNTIME": runtime,
        # The module of the explicit interface comes last: a copy beside the script wins.
        "PYTHONPATH": os.pathsep.join([*injected, *inherited, os.path.join(runtime, "api")]),
    }


def put_under(
    runtime: str,
    variables: Mapping[str, str],
    strategy: Mapping[str, Any],
    at_launch: Mapping[str, Any],
    launch_variables: Mapping[str, str],
) -> Dict[str, str]:
    """The environment of a command whose ranks put `strategy` in force (`changes`, and what they hold for).

    `at_launch` is the part of the changes that has to stand when the ranks start; `launch_variables` carry it there.
    """
    return {
        **variables,
        **reach_ranks(runtime, variables, everywhere=True),
        **launch_variables,
        RUN: json.dumps(strategy),
        "ADVISOR_COLD": json.dumps(at_launch),
    }


def is_trial(variables: Mapping[str, str]) -> bool:
    """Whether an agent is measuring: what is in force is for the trial to say."""
    return bool(variables.get("ADVISOR_CONTROL"))
