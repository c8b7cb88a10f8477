"""Numbers, times and foreign text as people read them."""

from collections.abc import Sequence
from datetime import datetime

from advisor.protocol.base import Value
from advisor.protocol.gains import spell_share
from advisor.protocol.knobs.changes import spell_with_unit
from advisor.protocol.plain_text import clean_text

NO_VALUE = "–"
_THIN = "\u202f"


def number(value: float, digits: int = 3) -> str:
    """Return `value` with that many significant digits at least, thousands set apart: `1 842`, `12.3`."""
    magnitude = abs(value)
    decimals = 0
    while decimals < 4 and magnitude * 10**decimals < 10 ** (digits - 1) and magnitude:
        decimals += 1
    return f"{value:,.{decimals}f}".replace(",", _THIN)


def amount(value: float) -> str:
    """Return a bound as it stands, thousands set apart: `0.0625`, `1 048 576`."""
    return f"{value:,.{4 if abs(value) < 1 else 10}g}".replace(",", _THIN)


def rate(value: float, half_width: float | None = None) -> str:
    """Return a throughput with its 95 % half width: `1 842 ± 14`."""
    if half_width is None:
        return number(value)
    decimals = 0 if half_width >= 1 else 1 if half_width >= 0.1 else 2
    return f"{value:,.{decimals}f} ± {half_width:,.{decimals}f}".replace(",", _THIN)


def milliseconds(seconds: float | None) -> str:
    """Return seconds as milliseconds without a unit: `138.9`."""
    if seconds is None:
        return NO_VALUE
    value = seconds * 1000
    if abs(value) < 0.005:
        return "0"
    return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}".replace(",", _THIN)


def signed_milliseconds(seconds: float) -> str:
    """Return a difference in milliseconds: `−11.1`, `+0.3`."""
    value = seconds * 1000
    if abs(value) < 0.005:
        return "0"
    text = f"{value:+.{0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2}f}"
    return text.replace("-", "−")


def percent(share: float | None, decimals: int = 0) -> str:
    """Return a share as a percentage: `93 %`."""
    return NO_VALUE if share is None else spell_share(share, decimals)


def size(count: float) -> str:
    """Return the size of a bucket or of gradients, spelled as the knobs that set it (1 MB is 2^20 bytes): `25 MB`."""
    value, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def data_rate(bytes_per_s: float) -> str:
    """Return how fast data went over a link, in the decimal units that links are sold in: `88 GB/s`, `1.05 MB/s`."""
    unit, scale = ("GB/s", 1e9) if bytes_per_s >= 999.5e6 else ("MB/s", 1e6)
    return f"{bytes_per_s / scale:.3g} {unit}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: `1 h 04 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def age(moment: datetime, now: datetime) -> str:
    """Return how long ago `moment` was, in one unit: `4 min ago`."""
    seconds = max(0.0, (now - moment).total_seconds())
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return f"{int(seconds)} s ago"


def device_hours(hours: float) -> str:
    """Return device-hours with the digits that matter: `2.9`, `0.04`."""
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def knob_value(value: Value | None, unit: str = "") -> str:
    """Return a knob's value as people write it: `on`, `off`, `25 MB`."""
    return NO_VALUE if value is None else spell_with_unit(value, unit)


def plural(count: int, noun: str) -> str:
    """Return `1 block`, `8 blocks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def clean_tail(text: str, lines: int = 50) -> str:
    """Return the last lines of such text."""
    return "\n".join(clean_text(text).rstrip("\n").split("\n")[-lines:])


def join_words(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
