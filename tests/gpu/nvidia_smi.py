"""What `nvidia-smi` says of the cards, to hold NVML's figures against."""

from collections.abc import Mapping
from dataclasses import dataclass

_FIELDS = ("index", "utilization.gpu", "memory.used", "power.draw", "clocks.sm", "temperature.gpu")
QUESTION = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
"""Its arguments."""
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class SmiSample:
    """One card at one moment; None where the card does not tell."""

    index: int
    busy: float | None
    """0 to 1."""
    memory_bytes: int | None
    power_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None


def read_smi(text: str) -> dict[int, SmiSample]:
    """Return the cards by their index; raises ValueError where the text is not the answer to QUESTION."""
    found = {}
    for line in text.strip().splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_FIELDS) or not values[0].isdigit():
            raise ValueError(f"nvidia-smi answered {line[:200]!r}, which is not {', '.join(_FIELDS)}.")
        figures: Mapping[str, float | None] = {
            name: _read_number(value) for name, value in zip(_FIELDS, values, strict=True)
        }
        busy, memory = figures["utilization.gpu"], figures["memory.used"]
        found[int(values[0])] = SmiSample(
            index=int(values[0]),
            busy=None if busy is None else busy / 100,
            memory_bytes=None if memory is None else int(memory * _MEBIBYTE),
            power_w=figures["power.draw"],
            sm_clock_mhz=figures["clocks.sm"],
            temperature_c=figures["temperature.gpu"],
        )
    if not found:
        raise ValueError("nvidia-smi named no card.")
    return found


def _read_number(text: str) -> float | None:
    """None for `[N/A]`, `[Not Supported]` and the like."""
    try:
        return float(text)
    except ValueError:
        return None
