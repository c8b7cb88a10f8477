"""Names that are like one that was mistyped."""

import difflib
from collections.abc import Iterable

MOST_NEAR = 3


def find_nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names with letters most like these, best first, at most three."""
    by_small = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), by_small, n=MOST_NEAR, cutoff=0.6)
    return tuple(by_small[small] for small in near)
