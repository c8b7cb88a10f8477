"""How busy a machine is with the work of others, and the sentence that says so."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_NAMED = 4
"""Names of processes that are told."""


def read_load() -> str:
    """Return what the kernel of this machine says of its load; empty where it says nothing."""
    try:
        return Path("/proc/loadavg").read_text()
    except OSError:
        return ""


def list_running() -> list[str]:
    """Return the names of the processes that run or want to at this moment, most of them first: `cc1plus (12)`."""
    names: Counter[str] = Counter()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(errors="replace")
        except OSError:  # it has ended
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        if rest.split()[:1] == ["R"] and stat.parent.name != str(os.getpid()):
            names[name] += 1
    return [f"{name} ({count})" if count > 1 else name for name, count in names.most_common()]


def say_load(load: str, cores: int, own: int = 0, running: Sequence[str] = ()) -> str:
    """Return the sentence that others want all of the machine's processors; empty where they do not.

    `load` is as `read_load` has it, `own` counts the training's own threads that run now, `running` names processes.
    The mean of the last minute and this moment both have to show it: the mean still holds what has ended, the moment
    may be a short one.
    """
    fields = load.split()
    if len(fields) < 4:
        return ""
    now = int(fields[3].split("/")[0]) - 1  # without the thread that reads it
    others = round(min(float(fields[0]), now)) - own
    if others < cores:
        return ""
    named = f" (now {', '.join(running[:_NAMED])})" if running else ""
    return (
        f"Load {float(fields[0]):.0f} on {cores} processors: {others} other processes want them{named}, so that starts "
        "and steps take longer, and vary. Measure where nothing else runs; tuning needs more time here (--minutes)."
    )


def say_load_here(own: int = 0) -> str:
    """Return the sentence for this machine, now; with names where all that run are others."""
    return say_load(read_load(), os.cpu_count() or 1, own, () if own else list_running())
