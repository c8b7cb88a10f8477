"""Fleet Advisor in a training script: `import fleet_advisor`, `fleet_advisor.start()`, `fleet_advisor.end_step()`.

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


def end_step(samples: Optional[int] = None) -> None:
    """Call after every update of the weights, on every rank: a training step ends here.

    Needed only where the advisor cannot tell steps or samples itself. `samples` is what this rank consumed in the step;
    without it the advisor counts them by the model's inputs.
    """
    current = sys.modules.get("fleet_advisor_runtime.current")
    if current is not None and current.current_runtime is not None:
        current.current_runtime.end_step(samples)
