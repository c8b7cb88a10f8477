"""Regular expressions that users submit: the one door for RE2, whose searches take time in proportion to the text.

Python's own engine takes exponential time for some patterns, and lets nothing else run meanwhile. What RE2 leaves out
for that promise (back references, looking ahead and behind) is refused where the pattern is submitted.
"""

import re
from collections.abc import Mapping
from typing import Protocol

import re2

_MOST_BYTES = 2**18
"""Memory of a compiled pattern: bounds the time of one search too, to about a tenth of a second in a line."""
_MOST_REPETITIONS = 1000
"""RE2's own limit; it takes much larger numbers for plain text without a word."""
_REPETITION = re.compile(r"(?<!\\)\{(\d*),?(\d*)\}")
_GROUP = re.compile(r"(?<!\\)\(\?P?<(\w+)>")
_LIMITS = (
    "Patterns are RE2's, which answers in linear time: it knows no back references, no looking ahead or behind, and "
    f"at most {_MOST_REPETITIONS} repetitions."
)


class Match(Protocol):
    """What a search found."""

    def groupdict(self) -> dict[str, str | None]:
        """Return what the named groups hold, None for those that took no part."""


class Pattern(Protocol):
    """A pattern that is ready to search."""

    @property
    def groupindex(self) -> Mapping[str, int]:
        """The numbers of the named groups."""

    def search(self, text: str) -> Match | None:
        """Return the first place where it matches."""


def compile_pattern(text: str) -> Pattern:
    """Return the pattern, ready to search; raises ValueError with a sentence for one that cannot be used."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_BYTES
    try:
        pattern: Pattern = re2.compile(text, options=options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace")
        raise ValueError(f"{_shorten(text)} is no usable regular expression: {why}. {_LIMITS}") from error
    counts = [int(count) for found in _REPETITION.findall(text) for count in found if count]
    if max(counts, default=0) > _MOST_REPETITIONS:
        raise ValueError(f"{_shorten(text)} is no usable regular expression: too many repetitions. {_LIMITS}")
    names = _GROUP.findall(text)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"{_shorten(text)} names the group {', '.join(twice)} twice: each name finds one value."
        )
    return pattern


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:99] + "…")
