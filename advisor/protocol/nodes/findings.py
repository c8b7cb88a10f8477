"""What an agent finds out about its node: `advisor-agent doctor --json` writes it and `advisor doctor` reads it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    is_fine: bool
    sentence: str
    """What was found, and what to do where it stands in an agent's way."""
