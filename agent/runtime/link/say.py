"""One line on standard error, where it disturbs no output that a script's owner parses."""

from __future__ import annotations

import sys


def say(sentence: str) -> None:
    """Something that the script's owner should know."""
    print(f"fleet advisor: {sentence}", file=sys.stderr, flush=True)
