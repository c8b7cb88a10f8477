"""The process of `advisor run --tune`: started just before the command, it serves the training and ends with it."""

import json
import sys
from pathlib import Path

from agent.production.tuning import Limits, tune


def main() -> None:
    """Read the settings from the first argument, and tune."""
    asked = json.loads(sys.argv[1])
    limits = Limits(asked["seconds"], asked["lost_s"], tuple(asked["left"]))
    tune(Path(asked["folder"]), limits, Path(asked["output"]), asked["command"])


if __name__ == "__main__":
    main()
