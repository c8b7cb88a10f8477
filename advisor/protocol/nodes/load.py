"""How busy a machine is with the work of others, and the sentence that says so."""

import os
from pathlib import Path


def read_load() -> str:
    """Return what the kernel of this machine says of its load; empty where it says nothing."""
    try:
        return Path("/proc/loadavg").read_text()
    except OSError:
        return ""


def say_load(load: str, cores: int, own: int = 0) -> str:
    """Return the sentence that others want all of the machine's processors; empty where they do not.

    `load` is as `read_load` has it, `own` counts the training's own threads that run now. The mean of the last minute
    and this moment both have to show it: the mean still holds what has ended, the moment may be a short one.
    """
    fields = load.split()
    if len(fields) < 4:
        return ""
    now = int(fields[3].split("/")[0]) - 1  # without the thread that reads it
    others = round(min(float(fields[0]), now)) - own
    if others < cores:
        return ""
    return (
        f"{others} other processes want this machine's {cores} processors: starts and steps take longer, and vary. "
        "Tune where nothing else runs, or give the job more time."
    )


def say_load_here(own: int = 0) -> str:
    """Return the sentence for this machine, now."""
    return say_load(read_load(), os.cpu_count() or 1, own)
