"""The process of `advisor run --tune`: started just before the command, it serves the training and ends with it."""

import json
import sys
from pathlib import Path

from advisor.protocol.knobs.changes import Changes
from agent.production.tuning import Limits, Start, tune


def main() -> None:
    """Read the settings from the first argument, and tune."""
    asked = json.loads(sys.argv[1])
    limits = Limits(asked["seconds"], asked["lost_s"], tuple(asked["left"]))
    start = Start(Changes(asked["start"]), asked["own"])
    tune(Path(asked["folder"]), limits, Path(asked["output"]), asked["command"], start)


if __name__ == "__main__":
    main()
