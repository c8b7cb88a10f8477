"""Fleet Advisor in a training script: `import fleet_advisor`, `fleet_advisor.start()`, `fleet_advisor.end_step()`.

For scripts that cannot be measured unchanged. One file, standard library only, any Python from 3.9: copy it beside the
script where fleet-advisor is not installed. Outside of a trial every function returns at once.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Optional


def start() -> None:
    """Call once in every training process, before the model is wrapped in DistributedDataParallel."""
    folder = os.environ.get("ADVISOR_RUNTIME")
    spec = PathFinder.find_spec("launch", [folder]) if folder else None
    if spec is not None and spec.loader is not None:
        launch = module_from_spec(spec)
        spec.loader.exec_module(launch)
        launch.watch()


def end_step(samples: Optional[int] = None) -> None:
    """Call after every update of the weights, on every rank: a training step ends here.

    Needed only where the advisor cannot tell steps or samples itself. `samples` is what this rank consumed in the step;
    without it the advisor counts them by the model's inputs.
    """
    current = sys.modules.get("fleet_advisor_runtime.current")
    if current is not None and current.current_runtime is not None:
        current.current_runtime.end_step(samples)
