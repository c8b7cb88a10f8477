"""Writes an advised strategy in the formats that other tools load unchanged: pure functions, one file per format."""

from advisor.exporters.exported import Exported, ExportError, FormatInfo
from advisor.exporters.formats import FORMATS, export, export_bundle, export_report

__all__ = [
    "FORMATS",
    "ExportError",
    "Exported",
    "FormatInfo",
    "export",
    "export_bundle",
    "export_report",
]
