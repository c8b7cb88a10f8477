"""Writes an advised strategy in the formats that other tools load unchanged: pure functions, one object per format."""

from advisor.exporters.format import Exported, ExportError, FormatInfo
from advisor.exporters.formats import (
    FORMATS,
    choose_format,
    export,
    list_at_work,
    list_bundled,
)

__all__ = [
    "FORMATS",
    "ExportError",
    "Exported",
    "FormatInfo",
    "choose_format",
    "export",
    "list_at_work",
    "list_bundled",
]
