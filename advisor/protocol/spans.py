"""Spans of time as people type them: `90s`, `30m`, `1h`, `7d`."""

import re

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def read_span(text: str) -> float:
    """Return how many seconds `90s`, `30m`, `1h` or `7d` are; raises ValueError with a sentence."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no span of time: write 90s, 30m, 1h or 7d.")
    return float(found[1]) * _SECONDS[found[2]]
