"""What the logs of server and agents have in common: who reads them, and how what others said stands in them."""

from enum import StrEnum


class LogFormat(StrEnum):
    """Who reads the log."""

    TEXT = "text"
    """People."""
    JSON = "json"
    """Programs: an object a line."""


def escape_controls(text: str) -> str:
    """Return `text` with control characters spelled out: a line break must not look like another line of the log."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
