"""The process of `advisor run --tune`: started just before the command, it serves the training and ends with it."""

import json
import signal
import sys
from pathlib import Path

from advisor.protocol.knobs.changes import Changes
from agent.production.beside import Training
from agent.production.tuning import Limits, Start, tune


def main() -> None:
    """Read the settings from the first argument, and tune."""
    # A signal to the training's process group ends this process, too: so it leaves no folder behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    training = Training()
    asked = json.loads(sys.argv[1])
    limits = Limits(asked["seconds"], asked["lost_s"], tuple(asked["left"]))
    start = Start(Changes(asked["start"]), asked["own"])
    tune(Path(asked["folder"]), limits, Path(asked["output"]), asked["command"], start, training)


def _leave(number: int, _frame: object) -> None:
    for further in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(further, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
