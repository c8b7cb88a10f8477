"""How numbers, durations and knob values read for people."""

from datetime import timedelta
from typing import TYPE_CHECKING

from advisor.protocol.kinds import Effect

if TYPE_CHECKING:  # A list of jobs spells durations only, and is asked for often.
    from advisor.protocol.base import Value

EFFECT_WORDS = {
    Effect.EXACT: "same results",
    Effect.NUMERIC: "changes rounding",
    Effect.CONVERGENCE: "changes how the model learns",
}
"""What a rung means to a user who has never heard of it."""


def spell_value(name: str, value: "Value") -> str:
    """`32 MB`, `on`, `2`."""
    from advisor.protocol.knobs.catalogue import CATALOGUE
    from advisor.protocol.knobs.changes import spell_with_unit

    return spell_with_unit(value, CATALOGUE[name].unit if name in CATALOGUE else "")


def spell_changes(changes: dict[str, "Value"]) -> str:
    """`fuse_grad_size_in_MB = 8 MB, nccl_comm_num = 2`; the script's own settings when empty."""
    if not changes:
        return "your settings"
    return ", ".join(f"{name} = {spell_value(name, value)}" for name, value in changes.items())


def spell_duration(seconds: float) -> str:
    """`41 s`, `1.5 min`, `12 min`, `3.4 h`, `2.1 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{round(seconds / 60, 1):g} min"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def spell_clock(span: timedelta) -> str:
    """Elapsed time as `4:12` or `1:04:12`."""
    minutes, seconds = divmod(max(0, int(span.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 round`, `8 rounds`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def spell_bits(bits_per_s: float) -> str:
    """`25 Gbit/s`, `400 Mbit/s`."""
    if bits_per_s >= 1e9:
        return f"{bits_per_s / 1e9:g} Gbit/s"
    return f"{bits_per_s / 1e6:g} Mbit/s"
