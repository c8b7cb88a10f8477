"""How a knob's value reads: the same for terminal and pages."""

from advisor.protocol.base import Value


def spell_with_unit(value: Value, unit: str = "") -> str:
    """Return a knob's value as people write it: `on`, `32 MB`, `1 thread`, `2 threads`, `empty` for no text."""
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if unit.endswith("s") and text == "1":
        unit = unit.removesuffix("es") if unit.endswith(("sses", "ches")) else unit[:-1]
    return f"{text} {unit}".strip()
