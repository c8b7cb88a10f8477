"""The end of a failed script's log: a traceback without the frames of what started the script."""

import re

_FRAME = re.compile(r'^(?P<rank>\[rank \d+\] )?(?P<indent> +)File "(?P<file>[^"]+)", line \d+')
_STARTERS = (
    "/agent/runtime/",
    "<frozen runpy>",
    "/torch/distributed/run.py",
    "/torch/distributed/launcher/",
    "/torch/distributed/elastic/",
    "/bin/torchrun",
)
"""Files of the advisor's own, Python's and torchrun's that stand above the script in every traceback."""
_SHOWN = 20


def shorten_log(text: str) -> str:
    """Return the last lines that say something about the script itself."""
    kept, inside = [], ""
    for line in text.splitlines():
        if (frame := _FRAME.match(line)) is not None:
            is_starter = any(part in frame["file"] for part in _STARTERS)
            inside = f"{frame['rank'] or ''}{frame['indent']} " if is_starter else ""
            if is_starter:
                continue
        elif inside and line.startswith(inside):
            continue  # the frame's line of code, and the marks below it
        else:
            inside = ""
        kept.append(line)
    return "\n".join(kept[-_SHOWN:])
