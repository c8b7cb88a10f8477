"""Fleet Advisor in a training script: `start()`, `end_step()`, `knob()`.

For scripts that cannot be measured unchanged. One file, standard library only, any Python from 3.9: copy it beside the
script where fleet-advisor is not installed. Outside of a trial every function returns at once.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import Any, Dict, Optional


def start() -> None:
    """Call once in every training process, before the model is wrapped in DistributedDataParallel."""
    folder = os.environ.get("ADVISOR_RUNTIME")
    if folder:
        # It may lie in an archive, whose loader before Python 3.10 has no exec_module.
        loader: Any = getattr(PathFinder.find_spec("launch", [folder]), "loader", None)
        launch: Dict[str, Any] = {"__name__": "launch", "__file__": loader.get_filename("launch")}
        exec(loader.get_code("launch"), launch)
        launch["watch"]()


def knob(name: str, otherwise: Any) -> Any:
    """Return the value of a knob of your own (`advisor tune --try 'NAME=1,2,4'`), in the type of `otherwise`.

    Outside of a trial, and of a training under a strategy, it is `otherwise`: today's value. Read when the script
    starts, a knob costs a launch for each value; asked in every step and declared hot (`NAME=1,2,4:hot`), none.
    """
    current = sys.modules.get("fleet_advisor_runtime.current")
    if current is not None:
        current.own_defaults.setdefault(name, otherwise)
        current.own_asked[name] = current.own_asked.get(name, 0) + 1
        if name in current.own_values:
            return _convert(current.own_values[name], otherwise)
    text = os.environ.get(f"ADVISOR_KNOB_{name}")
    return otherwise if text is None else _convert(text, otherwise)


def _convert(value: Any, like: Any) -> Any:
    if isinstance(like, bool):
        return str(value).lower() in ("1", "true", "on", "yes")
    return type(like)(float(value)) if isinstance(like, int) else type(like)(value)


def end_step(samples: Optional[int] = None) -> None:
    """Call after every update of the weights, on every rank: a training step ends here.

    Needed only where the advisor cannot tell steps or samples itself. `samples` is what this rank consumed in the step;
    without it the advisor counts them by the model's inputs.
    """
    current = sys.modules.get("fleet_advisor_runtime.current")
    if current is not None and current.current_runtime is not None:
        current.current_runtime.end_step(samples)
