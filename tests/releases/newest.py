"""Whether the page lags behind: its newest torch against the newest that the registry has."""

import re
import subprocess
import sys
from collections.abc import Collection

from tests.releases.page import read_release

ASKING_S = 30
"""A registry that takes longer is not reachable."""


def ask_registry() -> str | None:
    """Return the newest torch that pip's registry has; None where none answers."""
    words = [sys.executable, "-m", "pip", "index", "versions", "torch", "--timeout", "5", "--retries", "0"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ASKING_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    found = re.search(r"^torch \(([\d.]+)", done.stdout, re.MULTILINE)
    return found[1] if found else None


def find_lag(tried: Collection[str], newest: str) -> str:
    """Return a sentence where the newest release tried is more than one minor behind; else nothing."""
    last = max(tried, key=read_release)
    (major, minor), (newest_major, newest_minor) = read_release(last)[:2], read_release(newest)[:2]
    if newest_major == major and newest_minor <= minor + 1:
        return ""
    return (
        f"docs/results/torch_releases.md ends with torch {last}, and the registry has {newest}: run "
        f'make matrix TORCH="{newest}".'
    )
