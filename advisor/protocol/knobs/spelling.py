"""How a knob and its value read: the same for terminal, pages and files."""

from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE


def spell_name(name: str, software: Mapping[str, str]) -> str:
    """Return what users of the training's framework call a knob: PyTorch's word, or the name itself."""
    title = CATALOGUE[name].title if name in CATALOGUE and "torch" in software else ""
    return title or name


def spell_with_unit(value: Value, unit: str = "") -> str:
    """Return a knob's value as people write it: `on`, `32 MB`, `1 thread`, `2 threads`, `empty` for no text."""
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    # A script's own 20,971 bytes are 0.0199995 MB: four digits are enough to know it by.
    digits = ".4g" if isinstance(value, float) and abs(value) < 1 else "g"
    text = format(value, digits) if isinstance(value, float) else str(value)
    if unit.endswith("s") and text == "1":
        unit = unit.removesuffix("es") if unit.endswith(("sses", "ches")) else unit[:-1]
    return f"{text} {unit}".strip()
