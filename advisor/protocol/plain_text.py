"""Text of unknown origin, made safe to show: names from jobs, sentences from nodes, what a training printed."""

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return it without terminal codes, control and direction characters and lone surrogates; lines and tabs stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def escape_controls(json_text: str) -> str:
    """Return JSON with the characters escaped that JSON itself lets stand and a terminal obeys."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)
